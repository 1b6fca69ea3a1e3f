"""Requests from their first byte to their last, as plays: events in, bytes out, on a virtual clock, without a port.

A play is one entry of `PLAYS`: what is configured, what happens line by line, and how each request ended. Each is
played to its end, and then once more for each of its events, behind which all clients leave.
"""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import pytest

from controller.observation import Result
from proxy.compiled import is_active
from tests.support.playbook import (
    CLIENT,
    OTHER,
    SECOND,
    UPSTREAM,
    Accepts,
    Closed,
    Ends,
    Event,
    Gets,
    Loses,
    Passes,
    Paused,
    Play,
    Reads,
    Refuses,
    Says,
    Silent,
    Slows,
    answer,
    chunk,
    request,
)

pytestmark = pytest.mark.skipif(is_active(), reason="compiled modules cannot be given another clock")

CHAT_PATH = "/v1/chat/completions"
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
GOOD = b'{"choices":[{"message":{"content":"ho"},"finish_reason":"stop"}]}'
EVENT = b'data: {"choices":[{"delta":{"content":"ho"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

ASK = Says(CLIENT, request(CHAT_PATH, CHAT))
ASK_STREAM = Says(CLIENT, request(CHAT_PATH, STREAM))
ASKED = Gets(UPSTREAM, b"POST /v1/chat/completions HTTP/1.1\r\n", ..., b"\r\n\r\n" + CHAT)
ASKED_STREAM = Gets(UPSTREAM, b"POST /v1/chat/completions HTTP/1.1\r\n", ..., b"\r\n\r\n" + STREAM)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWERED = Gets(
    CLIENT, b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD
)
FLOWS = (
    ASK_STREAM,
    ASKED_STREAM,
    Says(UPSTREAM, STREAM_HEAD + chunk(EVENT)),
    Gets(CLIENT, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n", ..., b"chunked\r\n\r\n" + chunk(EVENT)),
)
"""A stream whose first event has passed."""

ONE_SLOT = {"setpoints": {"window_ms": 0, "max_batch_size": 1}}
NO_RETRY = {"retries": {"max": 0}}
KEEPALIVE = {"keepalive": {"enabled": True, "interval_ms": 1000}}
MERGING = {
    "upstreams": [{"url": "http://192.0.2.1:9000", "profile": "openai"}],
    "setpoints": {"window_ms": {"initial": 5000, "max": 5000}, "max_batch_size": 2},
}
TWO = {"upstreams": ["http://192.0.2.1:9000", "http://192.0.2.2:9000"]}
FALLBACK = {
    "pools": [
        {"name": "home", "upstreams": ["http://192.0.2.1:9000"], "fallback": {"pool": "spare"}},
        {"name": "spare", "upstreams": ["http://192.0.2.2:9000"], "match": {"paths": ["/none"]}},
    ]
}
BY_MODEL = {
    "pools": [
        {"name": "small", "upstreams": ["http://192.0.2.1:9000"], "match": {"models": ["s*"]}},
        {"name": "large", "upstreams": ["http://192.0.2.2:9000"], "match": {"models": ["m*"]}},
    ]
}
RESPONSES = "/v1/responses"
RESPONSE = b'{"id":"resp_abcdefgh12345678","object":"response","status":"completed","output":[]}'
OK, FAILED, CANCELLED = (Result.OK, 200), Result.FAILED, (Result.CANCELLED, 499)


class Plot(NamedTuple):
    """What is configured, what happens, and how each request ended."""

    config: dict[str, Any]
    events: tuple[Event, ...]
    ends: tuple[tuple[Result, int], ...]


PLAYS: dict[str, Plot] = {
    "an answer that comes whole": Plot({}, (ASK, ASKED, Says(UPSTREAM, answer(GOOD)), ANSWERED), (OK,)),
    "an answer that comes in pieces, its length known": Plot(
        {},
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(GOOD)[:-20]),
            Silent(CLIENT),
            Says(UPSTREAM, GOOD[-20:]),
            ANSWERED,
        ),
        (OK,),
    ),
    "two requests over one connection, and one to the upstream": Plot(
        {},
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
            ASK,
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        (OK, OK),
    ),
    "a client that says it is its last request": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, CHAT, b"Connection: close")),
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b"Connection: close\r\n\r\n" + GOOD),
            Closed(CLIENT),
        ),
        (OK,),
    ),
    "a body that comes in two reads": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, CHAT)[:-10]),
            Passes(1.0),
            Says(CLIENT, CHAT[-10:]),
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        (OK,),
    ),
    "a body that never comes": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, CHAT)[:-10]),
            Passes(61.0),
            Gets(CLIENT, b"HTTP/1.1 400 Bad Request\r\n", ..., b"slow", ..., b"}"),
            Passes(3.0),
            Closed(CLIENT),
        ),
        ((Result.REFUSED, 400),),
    ),
    "a client that waits for 100 before it sends what is read here": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, CHAT, b"Expect: 100-continue")[: -len(CHAT)]),
            Gets(CLIENT, b"HTTP/1.1 100 Continue\r\n\r\n"),
            Says(CLIENT, CHAT),
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        (OK,),
    ),
    "a client that waits for 100 before it sends what is passed on": Plot(
        {},
        (
            Says(CLIENT, request("/files", b"0123456789", b"Expect: 100-continue")[:-10]),
            Gets(UPSTREAM, b"POST /files HTTP/1.1\r\n", ..., b"Content-Length: 10\r\nExpect: 100-continue\r\n\r\n"),
            Silent(CLIENT),
            Says(UPSTREAM, b"HTTP/1.1 100 Continue\r\n\r\n"),
            Gets(CLIENT, b"HTTP/1.1 100 Continue\r\n\r\n"),
            Says(CLIENT, b"01234"),
            Gets(UPSTREAM, b"01234"),
            Says(CLIENT, b"56789"),
            Gets(UPSTREAM, b"56789"),
            Says(UPSTREAM, answer(b"kept", kind=b"text/plain")),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b"\r\n\r\nkept"),
        ),
        (OK,),
    ),
    "a stream, event by event": Plot(
        {},
        (
            *FLOWS,
            Says(UPSTREAM, chunk(EVENT)),
            Gets(CLIENT, chunk(EVENT)),
            Says(UPSTREAM, chunk(EVENT) + chunk(DONE) + chunk(b"")),
            Gets(CLIENT, chunk(EVENT) + chunk(DONE) + chunk(b"")),
        ),
        (OK,),
    ),
    "a stream to a client that takes no more for a while": Plot(
        {},
        (
            *FLOWS,
            Slows(CLIENT),
            Says(UPSTREAM, chunk(EVENT)),
            Paused(UPSTREAM),
            Gets(CLIENT, chunk(EVENT)),
            Reads(CLIENT),
            Paused(UPSTREAM, False),
            Says(UPSTREAM, chunk(DONE) + chunk(b"")),
            Gets(CLIENT, chunk(DONE) + chunk(b"")),
        ),
        (OK,),
    ),
    "a stream that breaks between two events says so and has no end": Plot(
        {},
        (
            *FLOWS,
            Loses(UPSTREAM),
            Gets(CLIENT, ..., b"\r\ndata: {", ..., b"upstream_error", ..., b"}\n\n\r\n"),
            Closed(CLIENT),
        ),
        ((FAILED, 200),),
    ),
    "a stream that breaks inside an event just stops": Plot(
        {},
        (
            *FLOWS,
            Says(UPSTREAM, chunk(EVENT[:20])),
            Gets(CLIENT, chunk(EVENT[:20])),
            Loses(UPSTREAM),
            Silent(CLIENT),
            Closed(CLIENT),
        ),
        ((FAILED, 200),),
    ),
    "a stream that stalls for too long": Plot(
        {"timeouts": {"between_chunks_ms": 5000}},
        (
            *FLOWS,
            Passes(4.9),
            Silent(CLIENT),
            Passes(0.2),
            Gets(CLIENT, ..., b"upstream_timeout", ..., b"}\n\n\r\n"),
            Closed(CLIENT),
            Closed(UPSTREAM, aborted=True),
        ),
        ((Result.TIMEOUT, 200),),
    ),
    "a stream to a client that knows no chunks ends by closing": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, STREAM).replace(b"HTTP/1.1", b"HTTP/1.0")),
            ASKED_STREAM,
            Says(UPSTREAM, STREAM_HEAD + chunk(EVENT)),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n", ..., b"close\r\n\r\n" + EVENT),
            Says(UPSTREAM, chunk(DONE) + chunk(b"")),
            Gets(CLIENT, DONE),
            Closed(CLIENT),
        ),
        (OK,),
    ),
    "a stream that breaks for a client that knows no chunks is reset": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, STREAM).replace(b"HTTP/1.1", b"HTTP/1.0")),
            ASKED_STREAM,
            Says(UPSTREAM, STREAM_HEAD + chunk(EVENT)),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., EVENT),
            Loses(UPSTREAM),
            Silent(CLIENT),
            Closed(CLIENT, aborted=True),
        ),
        ((FAILED, 200),),
    ),
    "a kept connection that the upstream had closed is nobody's failure": Plot(
        NO_RETRY,
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
            ASK,
            ASKED,
            Ends(UPSTREAM),
            Gets(SECOND, b"POST /v1/chat/completions HTTP/1.1\r\n", ..., CHAT),
            Says(SECOND, answer(GOOD)),
            ANSWERED,
        ),
        (OK, OK),
    ),
    "an overloaded upstream's neighbour is asked before a byte has gone down": Plot(
        TWO,
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(b"{}", b"Retry-After: 1", status=b"503 Service Unavailable")),
            Silent(CLIENT),
            Gets(SECOND, b"POST /v1/chat/completions HTTP/1.1\r\n", ..., CHAT),
            Says(SECOND, answer(GOOD)),
            ANSWERED,
        ),
        (OK,),
    ),
    "an upstream that breaks off before it answers, and no second try": Plot(
        NO_RETRY,
        (
            ASK,
            ASKED,
            Loses(UPSTREAM),
            Gets(CLIENT, b"HTTP/1.1 502 Bad Gateway\r\n", ..., b"upstream_error", ..., b"}"),
        ),
        ((FAILED, 502),),
    ),
    "an upstream that says nothing in time": Plot(
        {"timeouts": {"first_byte_ms": 5000}},
        (
            ASK,
            ASKED,
            Passes(4.9),
            Silent(CLIENT),
            Passes(0.2),
            Gets(CLIENT, b"HTTP/1.1 504 Gateway Timeout\r\n", ..., b"}"),
            Closed(UPSTREAM, aborted=True),
        ),
        ((Result.TIMEOUT, 504),),
    ),
    "an upstream's own error is passed on as it is": Plot(
        NO_RETRY,
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(b'{"error":"mine"}', status=b"500 Oh No")),
            Gets(CLIENT, b"HTTP/1.1 500 Oh No\r\n", ..., b'\r\n\r\n{"error":"mine"}'),
        ),
        ((FAILED, 500),),
    ),
    "what a pool is too busy for goes to its fallback": Plot(
        FALLBACK,
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(b"{}", status=b"503 Service Unavailable")),
            Silent(CLIENT),
            Gets(SECOND, b"POST /v1/chat/completions HTTP/1.1\r\nHost: 192.0.2.2:9000\r\n", ..., CHAT),
            Says(SECOND, answer(GOOD)),
            ANSWERED,
        ),
        (OK,),
    ),
    "a fallback that answers not now, too, has the last word": Plot(
        FALLBACK,
        (
            ASK,
            ASKED,
            Says(UPSTREAM, answer(b"{}", status=b"503 Service Unavailable")),
            Gets(SECOND, ..., CHAT),
            Says(SECOND, answer(b'{"busy":2}', status=b"503 Service Unavailable")),
            Gets(CLIENT, b"HTTP/1.1 503 Service Unavailable\r\n", ..., b'{"busy":2}'),
        ),
        ((FAILED, 503),),
    ),
    "a stream that has begun goes to no fallback": Plot(
        FALLBACK,
        (*FLOWS, Loses(UPSTREAM), Gets(CLIENT, ..., b"upstream_error", ..., b"\r\n"), Closed(CLIENT)),
        ((FAILED, 200),),
    ),
    "nobody accepts a connection": Plot(
        {"queue": {"upstream_wait_ms": 0}},
        (
            Refuses(),
            ASK,
            Gets(CLIENT, b"HTTP/1.1 502 Bad Gateway\r\n", ..., b"}"),
        ),
        ((FAILED, 502),),
    ),
    "nobody accepts a connection, until somebody does": Plot(
        {"queue": {"upstream_wait_ms": 60_000}, "health": {"interval_ms": 1000}},
        (
            Refuses(),
            ASK,
            Passes(2.0),
            Silent(CLIENT),
            Accepts(),
            Passes(2.0),
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        (OK,),
    ),
    "the pool that serves the model is asked": Plot(
        BY_MODEL,
        (
            ASK,
            Gets(UPSTREAM, b"POST /v1/chat/completions HTTP/1.1\r\nHost: 192.0.2.2:9000\r\n", ..., CHAT),
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        (OK,),
    ),
    "a model that no pool serves": Plot(
        BY_MODEL,
        (
            Says(CLIENT, request(CHAT_PATH, CHAT.replace(b'"m"', b'"x"'))),
            Gets(CLIENT, b"HTTP/1.1 404 Not Found\r\n", ..., b"}"),
        ),
        ((Result.REFUSED, 404),),
    ),
    "a model that is named in a body which nobody reads here": Plot(
        BY_MODEL,
        (
            Says(CLIENT, request("/own/api", b'{"model":"s1"}')[:-4]),
            Says(CLIENT, b's1"}'),
            Gets(UPSTREAM, b"POST /own/api HTTP/1.1\r\nHost: 192.0.2.1:9000\r\n", ..., b'{"model":"s1"}'),
            Says(UPSTREAM, answer(b"ok")),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b"ok"),
        ),
        (OK,),
    ),
    "a follow-up goes to the upstream that keeps what it names, whoever else has room": Plot(
        TWO,
        (
            Says(CLIENT, request(RESPONSES, b'{"model":"m","input":"a"}')),
            Gets(UPSTREAM, b"POST /v1/responses HTTP/1.1\r\nHost: 192.0.2.1:9000\r\n", ...),
            Says(UPSTREAM, answer(RESPONSE)),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., RESPONSE),
            Says(CLIENT, request(f"{RESPONSES}/resp_abcdefgh12345678", method="GET")),
            Gets(UPSTREAM, b"GET /v1/responses/resp_abcdefgh12345678 HTTP/1.1\r\nHost: 192.0.2.1:9000\r\n", ...),
            Says(UPSTREAM, answer(RESPONSE)),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., RESPONSE),
        ),
        (OK, OK),
    ),
    "a follow-up whose keeper answers not now hears that from it": Plot(
        {**TWO, **NO_RETRY},
        (
            Says(CLIENT, request(RESPONSES, b'{"model":"m","input":"a"}')),
            Gets(UPSTREAM, b"POST /v1/responses HTTP/1.1\r\nHost: 192.0.2.1:9000\r\n", ...),
            Says(UPSTREAM, answer(RESPONSE)),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., RESPONSE),
            Says(CLIENT, request(f"{RESPONSES}/resp_abcdefgh12345678", method="GET")),
            Gets(UPSTREAM, b"GET ", ...),
            Says(UPSTREAM, answer(b'{"busy":1}', status=b"503 Service Unavailable")),
            Gets(CLIENT, b"HTTP/1.1 503 Service Unavailable\r\n", ..., b'{"busy":1}'),
        ),
        (OK, (FAILED, 503)),
    ),
    "comments in the silence before an answer commit to a stream": Plot(
        KEEPALIVE,
        (
            ASK_STREAM,
            ASKED_STREAM,
            Passes(0.9),
            Silent(CLIENT),
            Passes(0.2),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream", ..., b"\r\n\r\n" + chunk(COMMENT)),
            Passes(1.0),
            Gets(CLIENT, chunk(COMMENT)),
            Says(UPSTREAM, STREAM_HEAD + chunk(EVENT)),
            Gets(CLIENT, chunk(EVENT)),
            Says(UPSTREAM, chunk(DONE) + chunk(b"")),
            Gets(CLIENT, chunk(DONE) + chunk(b"")),
        ),
        (OK,),
    ),
    "what goes wrong behind a comment is told inside the stream": Plot(
        {**KEEPALIVE, **NO_RETRY},
        (
            ASK_STREAM,
            ASKED_STREAM,
            Passes(1.1),
            Gets(CLIENT, ..., chunk(COMMENT)),
            Says(UPSTREAM, answer(b"{}", status=b"500 Oh No")),
            Gets(CLIENT, ..., b"data: {", ..., b"upstream_error", ..., b"\r\n"),
            Closed(CLIENT),
        ),
        ((FAILED, 200),),
    ),
    "no comment goes into the middle of an event": Plot(
        KEEPALIVE,
        (
            *FLOWS,
            Says(UPSTREAM, chunk(EVENT[:20])),
            Gets(CLIENT, chunk(EVENT[:20])),
            Passes(5.0),
            Silent(CLIENT),
            Says(UPSTREAM, chunk(EVENT[20:])),
            Gets(CLIENT, chunk(EVENT[20:])),
            Passes(1.1),
            Gets(CLIENT, chunk(COMMENT)),
            Says(UPSTREAM, chunk(DONE) + chunk(b"")),
            Gets(CLIENT, chunk(DONE) + chunk(b"")),
        ),
        (OK,),
    ),
    "a client that waits its turn is asked for when there is a place": Plot(
        ONE_SLOT,
        (
            ASK,
            ASKED,
            Says(OTHER, request(CHAT_PATH, CHAT)),
            Silent(UPSTREAM),
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            Gets(OTHER, b"HTTP/1.1 200 OK\r\n", ..., GOOD),
        ),
        (OK, OK),
    ),
    "a client whose patience ends while it waits its turn": Plot(
        ONE_SLOT,
        (
            ASK,
            ASKED,
            Says(OTHER, request(CHAT_PATH, CHAT, b"X-Trimtab-Timeout-Ms: 2000")),
            Passes(2.1),
            Gets(OTHER, b"HTTP/1.1 504 Gateway Timeout\r\n", ..., b"}"),
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        ((Result.SHED, 504), OK),
    ),
    "two that can be merged share a call and get their own parts": Plot(
        MERGING,
        (
            Says(CLIENT, request("/v1/embeddings", b'{"model":"m","input":"a"}')),
            Says(OTHER, request("/v1/embeddings", b'{"model":"m","input":"b"}')),
            Gets(UPSTREAM, b"POST /v1/embeddings HTTP/1.1\r\n", ..., b'"input":["a","b"]', ...),
            Says(
                UPSTREAM,
                answer(
                    b'{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[1]},'
                    b'{"object":"embedding","index":1,"embedding":[2]}],"usage":{"prompt_tokens":2,"total_tokens":2}}'
                ),
            ),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b'"embedding":[1]', ...),
            Gets(OTHER, b"HTTP/1.1 200 OK\r\n", ..., b'"embedding":[2]', ...),
        ),
        (OK, OK),
    ),
    "what nobody knows is passed on untouched": Plot(
        {},
        (
            Says(CLIENT, request("/what%20ever?x=1", method="GET")),
            Gets(UPSTREAM, b"GET /what%20ever?x=1 HTTP/1.1\r\n", ..., b"\r\n\r\n"),
            Says(UPSTREAM, answer(b"it", b"X-Own: 1", status=b"418 Teapot", kind=b"text/x")),
            Gets(CLIENT, b"HTTP/1.1 418 Teapot\r\nContent-Type: text/x\r\nX-Own: 1\r\n", ..., b"\r\n\r\nit"),
        ),
        ((FAILED, 418),),
    ),
    "the answer to HEAD has the length of what it does not bring": Plot(
        {},
        (
            Says(CLIENT, request("/file", method="HEAD")),
            Gets(UPSTREAM, b"HEAD /file HTTP/1.1\r\n", ..., b"\r\n\r\n"),
            Says(UPSTREAM, answer(b"", kind=b"text/x").replace(b"Length: 0", b"Length: 1234")),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 1234\r\n\r\n"),
            Passes(1.0),
            Says(CLIENT, request("/file", method="HEAD")),
            Gets(UPSTREAM, b"HEAD /file HTTP/1.1\r\n", ...),
            Says(UPSTREAM, answer(b"", kind=b"text/x")),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\n", ..., b"\r\n\r\n"),
        ),
        (OK, OK),
    ),
    "a refused HEAD brings no body": Plot(
        {"match": {"paths": ["/v1/*"]}},
        (
            Says(CLIENT, request("/elsewhere", method="HEAD")),
            Gets(CLIENT, b"HTTP/1.1 404 Not Found\r\n", ..., b"\r\nContent-Length: ", ..., b"\r\n\r\n"),
        ),
        ((Result.REFUSED, 404),),
    ),
    "a body that is no JSON is refused, and the connection goes on": Plot(
        {},
        (
            Says(CLIENT, request(CHAT_PATH, b"{nonsense")),
            Gets(CLIENT, b"HTTP/1.1 400 Bad Request\r\n", ..., b"}"),
            ASK,
            ASKED,
            Says(UPSTREAM, answer(GOOD)),
            ANSWERED,
        ),
        ((Result.REFUSED, 400), OK),
    ),
    "an upgrade becomes a tunnel until the upstream closes": Plot(
        {},
        (
            Says(CLIENT, request("/ws", b"", b"Connection: Upgrade", b"Upgrade: websocket", method="GET")),
            Gets(UPSTREAM, b"GET /ws HTTP/1.1\r\n", ..., b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
            Says(
                UPSTREAM, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi"
            ),
            Gets(CLIENT, b"HTTP/1.1 101 Switching Protocols\r\n", ..., b"Upgrade: websocket\r\n\r\nhi"),
            Says(CLIENT, b"\x81\x00"),
            Gets(UPSTREAM, b"\x81\x00"),
            Says(UPSTREAM, b"\x88\x00"),
            Gets(CLIENT, b"\x88\x00"),
            Ends(UPSTREAM),
            Closed(CLIENT),
        ),
        ((Result.OK, 101),),
    ),
    "a client that leaves a tunnel takes the upstream's side with it": Plot(
        {},
        (
            Says(CLIENT, request("/ws", b"", b"Connection: Upgrade", b"Upgrade: websocket", method="GET")),
            Gets(UPSTREAM, ..., b"Upgrade: websocket\r\n\r\n"),
            Says(UPSTREAM, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
            Gets(CLIENT, b"HTTP/1.1 101 Switching Protocols\r\n", ...),
            Loses(CLIENT),
            Closed(UPSTREAM, aborted=True),
        ),
        ((Result.OK, 101),),
    ),
    "a client that leaves a stream takes the upstream's call with it": Plot(
        {}, (*FLOWS, Loses(CLIENT), Closed(UPSTREAM, aborted=True)), (CANCELLED,)
    ),
    "a probe is answered here, and counts for nobody": Plot(
        {},
        (
            Says(CLIENT, request("/-/trimtab/healthz", method="GET")),
            Gets(CLIENT, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"),
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", PLAYS)
def test_a_play(name: str) -> None:
    config, events, ends = PLAYS[name]
    with Play(**config) as play:
        play.run(events)
        observed = play.end()
        codes = [code for _, _, code in play.counts.finished]
    assert [(obs.result, code) for obs, code in zip(observed, codes, strict=True)] == list(ends)


@pytest.mark.parametrize(
    ("name", "count"), [(name, count) for name, plot in PLAYS.items() for count in range(1, len(plot.events))]
)
def test_nothing_is_left_when_the_clients_leave_behind_any_event(name: str, count: int) -> None:
    config, events, ends = PLAYS[name]
    with Play(**config) as play:
        play.run(events[:count])
        assert len(play.leave()) <= len(ends), "each is observed once"
        assert all(play.at_rest(side) for side in (UPSTREAM, SECOND)), "no call goes on for nobody"


@pytest.mark.parametrize(
    "name",
    [
        "an answer that comes whole",
        "a stream, event by event",
        "two that can be merged share a call and get their own parts",
    ],
)
def test_an_answered_request_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    """What holds itself in a circle is found only by a search through everything, which every request pays for."""
    config, events, _ = PLAYS[name]
    with Play(**config) as play:
        play.run(events)
        gc.collect()
        gc.disable()
        try:
            play.run(events)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("proxy.")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
