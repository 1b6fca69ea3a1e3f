"""What upstreams do wrong in the storms: the behaviours that chaos draws from."""

from __future__ import annotations

from typing import Any

__all__ = ["FAULTS"]

_ANSWER = "HTTP/1.1 200 OK\r\nX-Number: 0\r\nContent-Length: 4\r\n\r\njunk"

FAULTS: tuple[dict[str, Any], ...] = (
    {"reset_before_head": True},
    {"close_before_head": True},
    {"garbage": True},
    {"cut_at": 60},
    {"cut_at": 60, "reset": True},
    {"stall_at": 100},
    {"hang": True},
    {"status": 503, "retry_after": "0"},
    {"status": 500},
    {"status": 429},
    {"drop_idle": True},
    {"close": True},
    {"delay": 0.02},
    {"gap": 0.002},
    {"shuffle": True},
    {"results": 1},
    {"junk": _ANSWER},
    {"junk": _ANSWER[:20]},
    {"junk": "\r\n"},
    {"interim": 103, "junk": "HTTP/1.1 100 Continue\r\n\r\n"},
    {"trailers": [["X-Sum", "1"]], "junk": "X-Junk: 1\r\n\r\n"},
    {"drip": 0.001},
    {"body": '{"error":{"message":"out of memory","type":"server_error"}}'},
    {"status": 404},
    {"status": 401},
    {"status": 422},
    {"status": 429, "retry_after": "1"},
    {"status": 503, "retry_after": "Fri, 31 Dec 1999 23:59:59 GMT"},
)
