"""What a client is told, in its own protocol and its own framing: refusals, whole answers and broken streams."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.compiled import is_active
from tests.support.playbook import CLIENT, UPSTREAM, Closed, Gets, Loses, Play, Says, Silent, answer, chunk, request

pytestmark = pytest.mark.skipif(is_active(), reason="compiled modules cannot be given another clock")

MESSAGES = b'"model":"m","messages":[{"role":"user","content":"hi"}]'
ASK = Says(CLIENT, request("/any", method="GET"))
ASKED = Gets(UPSTREAM, b"GET /any HTTP/1.1\r\n", ...)
OLD = Says(CLIENT, request("/any", method="GET").replace(b"HTTP/1.1", b"HTTP/1.0"))

REFUSALS = {
    "openai": ("/v1/chat/completions", b"{%b}" % MESSAGES, b'{"error":{"message":"', b'"code":"draining"}}'),
    "anthropic": ("/v1/messages", b'{%b,"max_tokens":5}' % MESSAGES, b'{"type":"error","error":{"type":"', b"}}"),
    "ollama": ("/api/chat", b"{%b}" % MESSAGES, b'{"error":"', b'"}'),
    "kserve": ("/v2/models/m/infer", b'{"inputs":[]}', b'{"error":"', b'"}'),
    "tfserving": ("/v1/models/m:predict", b'{"instances":[1]}', b'{"error":"', b'"}'),
    "tgi": ("/generate", b'{"inputs":"hi"}', b'{"error":"', b'"}'),
    "tei": ("/embed", b'{"inputs":"hi"}', b'{"error":"', b'"}'),
}
"""Path, body, and how a refusal begins and ends."""

BROKEN = {
    "openai": (
        "/v1/chat/completions",
        b'{%b,"stream":true}' % MESSAGES,
        b"text/event-stream",
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b'data: {"error":{',
    ),
    "anthropic": (
        "/v1/messages",
        b'{%b,"max_tokens":5,"stream":true}' % MESSAGES,
        b"text/event-stream",
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b'event: error\ndata: {"type":"error"',
    ),
    "tgi": (
        "/generate_stream",
        b'{"inputs":"hi"}',
        b"text/event-stream",
        b'data: {"token":{"text":"a"}}\n\n',
        b'data:{"error"',
    ),
}
"""Path, body, type of the answer, its first event, and how the frame begins that says that it broke."""


def play(*events: Any, **config: Any) -> None:
    with Play(**config) as scene:
        scene.run(events)
        scene.end()


@pytest.mark.parametrize("protocol", REFUSALS)
def test_a_refusal_speaks_the_callers_protocol(protocol: str) -> None:
    path, body, begins, ends = REFUSALS[protocol]
    with Play() as scene:
        scene.lifecycle.refusing = True
        scene.run(
            [
                Says(CLIENT, request(path, body)),
                Gets(
                    CLIENT,
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n", ...,
                    b"X-Trimtab-Reason: draining\r\n", ..., b"Retry-After: ", ...,
                    b"\r\n\r\n" + begins, ..., ends,
                ),
            ]
        )  # fmt: skip
        scene.end()


@pytest.mark.parametrize("protocol", BROKEN)
def test_a_broken_stream_says_so_in_the_callers_protocol(protocol: str) -> None:
    path, body, kind, event, frame = BROKEN[protocol]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % kind
    play(
        Says(CLIENT, request(path, body)),
        Gets(UPSTREAM, b"POST ", ..., body),
        Says(UPSTREAM, head + chunk(event)),
        Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., chunk(event)),
        Loses(UPSTREAM),
        Gets(CLIENT, ..., b"\r\n" + frame, ..., b"\r\n"),
        Closed(CLIENT),
    )


@pytest.mark.parametrize(
    ("upstream", "client"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n', b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n'),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"ab") + chunk(b"c") + chunk(b""),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"abc") + chunk(b""),
        ),
        (
            b"HTTP/1.1 200 OK\r\nX-Request-Id: theirs\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
        ),
        (
            b"HTTP/1.1 299 Own Words\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 299 Own Words\r\nContent-Length: 0\r\n\r\n",
        ),
    ],
    ids=["no content", "not modified", "chunked", "with an id of its own", "with a reason of its own"],
)
def test_a_whole_answer_is_framed_as_it_came(upstream: bytes, client: bytes) -> None:
    play(ASK, ASKED, Says(UPSTREAM, upstream), Gets(CLIENT, client))


def test_a_chunked_answer_has_a_length_or_an_end_for_a_client_that_knows_no_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"abc") + chunk(b"")
    play(
        OLD,
        ASKED,
        Says(UPSTREAM, chunked),
        Gets(CLIENT, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"),
        Closed(CLIENT),
    )


def test_a_long_answer_of_known_length_passes_as_it_comes() -> None:
    half = b"x" * 200_000
    play(
        ASK,
        ASKED,
        Says(UPSTREAM, b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + half),
        Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b"Content-Length: 400000\r\n\r\n" + half),
        Says(UPSTREAM, half),
        Gets(CLIENT, half),
    )


def test_a_long_answer_that_breaks_off_is_cut_short_of_its_length() -> None:
    half = b"x" * 200_000
    play(
        ASK,
        ASKED,
        Says(UPSTREAM, b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + half),
        Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., half),
        Loses(UPSTREAM),
        Silent(CLIENT),
        Closed(CLIENT),
    )


def test_a_refusal_closes_a_connection_whose_body_is_still_to_come() -> None:
    with Play() as scene:
        scene.lifecycle.refusing = True
        scene.run(
            [
                Says(CLIENT, request("/v1/chat/completions", b"{%b}" % MESSAGES)[:-5]),
                Gets(CLIENT, b"HTTP/1.1 503 Service Unavailable\r\n", ..., b"Connection: close\r\n\r\n", ..., b"}}"),
            ]
        )
        scene.end()


def test_a_draining_proxy_closes_behind_each_answer() -> None:
    with Play() as scene:
        scene.lifecycle.draining = True
        scene.run(
            [
                ASK,
                ASKED,
                Says(UPSTREAM, answer(b"ok")),
                Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b"Connection: close\r\n\r\nok"),
                Closed(CLIENT),
            ]
        )
        scene.end()


def test_an_answer_in_which_the_error_stands_counts_as_a_failure_whatever_its_status() -> None:
    body = b'{"error":{"message":"out of memory","type":"server_error","code":500}}'
    with Play(retries={"max": 0}) as scene:
        scene.run(
            [
                Says(CLIENT, request("/v1/chat/completions", b"{%b}" % MESSAGES)),
                Gets(UPSTREAM, b"POST ", ...),
                Says(UPSTREAM, answer(body)),
                Gets(CLIENT, b"HTTP/1.1 500 ", ..., body),
            ]
        )
        assert [obs.result.value for obs in scene.end()] == ["failed"]
