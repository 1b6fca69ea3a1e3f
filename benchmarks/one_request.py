"""How far one request travels through the code: calls, files, moves between rooms, records made.

    python -m benchmarks.one_request [--quick] [--json FILE]

One warm chat on a kept connection, from the client's bytes to the answer's, between fake connections and in virtual
time, from source. A room is a folder of a package, or a file at its root. What is counted are Python's calls and the
constructors that Python runs; what all of it costs, `python -m benchmarks.proxy.instructions` says.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TRIMTAB_COMPILED"] = "0"  # before the proxy is imported: compiled code makes no calls that Python sees

from benchmarks.bars import Bar, report
from proxy.config.model import Config
from proxy.observe.metrics import Metrics
from proxy.observe.traffic import Traffic
from tests.support.playbook import CLIENT, UPSTREAM, Gets, Play, Says, answer, chunk, request

__all__ = ["Journey", "travel"]

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("controller", "policies", "proxy")
_WARM = 6
_EVENT = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
_WHOLE = answer(
    b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2}}'
)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Journey(NamedTuple):
    """What one request passed through."""

    calls: int
    files: tuple[str, ...]
    moves: int
    """From one room to another."""
    records: Counter[str]
    """How many objects of each class were made."""


def travel(*, streamed: bool = False) -> Journey:
    """Send a few chats one after the other and follow the last one."""
    body = b'{"model":"m","stream":%b,"messages":[{"role":"user","content":"hello"}]}' % (
        b"true" if streamed else b"false"
    )
    says = Says(CLIENT, request("/v1/chat/completions", body))
    if streamed:
        tells = [Says(UPSTREAM, _STREAM + chunk(_EVENT)), *[Says(UPSTREAM, chunk(_EVENT))] * 5]
        tells.append(Says(UPSTREAM, chunk(b"data: [DONE]\n\n") + chunk(b"")))
    else:
        tells = [Says(UPSTREAM, _WHOLE)]
    chat = [says, Gets(UPSTREAM, ...), *tells, Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ...)]
    config: dict[str, Any] = {"dispatch": "gate", "slo": {"ttft_ms": 500.0}}
    with Play(**config) as play:
        traffic = Traffic(
            Metrics(Config.model_validate({"upstreams": ["http://192.0.2.1"], **config}).pools, process=False)
        )
        play.handler.service.hooks = play.pools[0].hooks = traffic
        for _ in range(_WARM):
            play.run(chat)
        seen = _Watch()
        sys.setprofile(seen)
        play.run(chat)
        sys.setprofile(None)
        play.leave()
    return seen.journey()


class _Watch:
    """Takes the interpreter's word for every call."""

    def __init__(self) -> None:
        self._calls = 0
        self._files: dict[str, None] = {}
        self._rooms: list[str] = []
        self._records: Counter[str] = Counter()

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        try:
            parts = Path(code.co_filename).relative_to(_ROOT).parts
        except ValueError:
            return
        if parts[0] not in _PACKAGES:
            return
        self._calls += 1
        self._files["/".join(parts)] = None
        room = "/".join(parts[:2])
        if self._rooms[-1:] != [room]:
            self._rooms.append(room)
        if code.co_name == "__init__":
            self._records[type(frame.f_locals["self"]).__name__] += 1

    def journey(self) -> Journey:
        """Return what has been seen."""
        return Journey(self._calls, tuple(self._files), max(0, len(self._rooms) - 1), self._records)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a plain and a streamed chat pass through, and the bars of the plain one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_request", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the plain chat alone")
    parser.add_argument("--json", metavar="FILE", help="write the bars there")
    options = parser.parse_args(arguments)
    plain = travel()
    for name, one in [("plain", plain)] if options.quick else [("plain", plain), ("streamed", travel(streamed=True))]:
        print(f"{name}: {one.calls} calls, {len(one.files)} files, {one.moves} moves between rooms")
        print(f"  records: {', '.join(f'{kind} {made}' for kind, made in sorted(one.records.items()))}")
    return report(
        [
            Bar.below("kinds of records made for a plain chat", len(plain.records), 8),
            Bar.below("files it touches", len(plain.files), 38),
            Bar.below("its moves between rooms", plain.moves, 60),
        ],
        options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
