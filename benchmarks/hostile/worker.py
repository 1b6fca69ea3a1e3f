"""Requests made to cost the worker's API process as much as they can, beside an honest caller's streams."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.bars import Bar
from benchmarks.hostile.around import resident
from tests.e2e.tiny_checkpoint import make_tiny_checkpoint

__all__ = ["kinds", "measure"]

_AT_ONCE = 4
_PATIENCE_S, _HASTE_S = 60.0, 0.2
"""How long an answer is waited for; with --quick who gets none leaves."""
_WHOLE, _TASTE = 16_000_000, 300_000
_CHAT, _COMPLETE, _EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
_STREAM = json.dumps({"prompt": "once", "max_tokens": 48, "ignore_eos": True, "stream": True}).encode()

Make = Callable[[int], bytes]


def _filled(before: bytes, piece: bytes, after: bytes) -> Make:
    return lambda size: before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def _limited(before: bytes, piece: bytes, after: bytes, most: int) -> Make:
    """Return what makes bodies with as many pieces as are let in, and no more."""
    return lambda size: before + piece * min(most, (size - len(before) - len(after)) // len(piece)) + after


def _numbered(before: bytes, piece: bytes, after: bytes, most: int = 1 << 62) -> Make:
    """Return what makes bodies in which every piece is another one."""

    def make(size: int) -> bytes:
        count = min(most, (size - len(before) - len(after)) // (len(piece) + 4))
        return before + b"".join([piece % number for number in range(count)]) + after

    return make


def _plain() -> dict[str, tuple[str, Make]]:
    """Return what is known from the proxy's bodies: JSON that is large in every way JSON can be."""
    head, tail = b'{"messages":[', b"]}"
    text = b'{"messages":[{"role":"user","content":"', b'"}]}'
    found: dict[str, tuple[str, Make]] = {}
    for name, piece in (
        ("empty lists", b"[],"), ("empty objects", b"{},"), ("objects", b'{"a":1},'), ("digits", b"7,"),
        ("fractions", b"0.123456,"), ("numbers beyond 64 bits", b"18446744073709551616,"), ("words", b"null,"),
        ("short strings", b'"a",'), ("nesting of 900 levels", b"[" * 900 + b"]" * 900 + b","),
        ("nesting of objects", b'{"a":' * 60 + b"0" + b"}" * 60 + b","),
    ):  # fmt: skip
        found[name] = (_CHAT, _filled(head, piece, b"0" + tail))
    for name, piece in (
        ("one long text", b"word "), ("one word without end", b"x"), ("emoji", "\U0001f600".encode()),
        ("escaped letters", b"\\u0041"), ("half pairs", b"\\ud83d"), ("invalid UTF-8", b"\xff\xfe"),
        ("null bytes", b"\\u0000"), ("spaces in a text", b" "), ("special tokens", b"<begin>"),
    ):  # fmt: skip
        found[name] = (_CHAT, _filled(text[0], piece, text[1]))
    found |= {
        "no end of nesting": (_CHAT, _filled(head, b"[", b"")),
        "a number of millions of digits": (_CHAT, _filled(head, b"9", tail)),
        "many names": (_CHAT, _numbered(b"{", b'"k%d":1,', b'"model":"m"}')),
        "names, as many as are let in": (_CHAT, _numbered(b"{", b'"k%d":1,', b'"n":1}', 999_000)),
        "one name again and again": (_CHAT, _filled(b"{", b'"model":"m",', b'"model":"m"}')),
        "a model's name without end": (_CHAT, _filled(b'{"model":"', b"m", b'"}')),
        "no JSON at all": (_CHAT, _filled(b"", b"GET / ", b"")),
        "no object but a list": (_CHAT, _filled(b"[", b"1,", b"0]")),
        "lists, as many as are let in": (_CHAT, _limited(head, b"[],", b"0" + tail, 49_000)),
        "objects, as many as are let in": (_CHAT, _limited(head, b'{"a":{}},', b"0" + tail, 24_000)),
    }
    return found


def kinds() -> dict[str, tuple[str, Make]]:
    """Return path and maker of every kind of body."""
    said = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,'
    ask = b'{"prompt":"hi","max_tokens":1,'
    call = b'{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"'
    schema = b'{"type":"json_schema","json_schema":{"name":"x","schema":'
    tool = b'{"type":"function","function":{"name":"f","parameters":'
    token = b"1,"
    return _plain() | {
        "many messages": (
            _CHAT,
            _limited(b'{"messages":[', b'{"role":"user","content":"hi"},', b'{"role":"user","content":"x"}]}', 4_000),
        ),
        "many parts of a message": (
            _CHAT,
            _limited(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"a"},',
                     b'{"type":"text","text":"a"}]}]}', 49_000),
        ),
        "calls of lists behind escapes": (
            _CHAT,
            _filled(b'{"messages":[' + call, b"\\u005b],", b'"}}]}]}'),
        ),
        "a call's arguments": (
            _CHAT,
            _limited(b'{"messages":[' + call + b'{\\"a\\":[', b"1,", b'1]}"}}]}],"max_tokens":1}', 900_000),
        ),
        "template variables": (
            _CHAT,
            _numbered(said + b'"chat_template_kwargs":{', b'"k%d":1,', b'"z":1}}', 900_000),
        ),
        "prompts of one token": (_COMPLETE, _limited(b'{"max_tokens":1,"prompt":[', b"[1],", b"[1]]}", 2_000)),
        "too many prompts": (_COMPLETE, _filled(b'{"prompt":[', b'"x",', b'"x"]}')),
        "a prompt of tokens": (_COMPLETE, _limited(b'{"prompt":[', token, b"1]}", 990_000)),
        "prompts of many tokens": (
            _COMPLETE,
            _limited(b'{"max_tokens":1,"prompt":[', b"[" + token * 480 + b"1],", b"[1]]}", 200),
        ),
        "texts that all just fit": (
            _COMPLETE,
            _limited(b'{"max_tokens":1,"prompt":[', b'"' + b"a" * 1_000 + b'",', b'"a"]}', 200),
        ),
        "inputs of many tokens": (_EMBED, _limited(b'{"input":[', b"[" + token * 480 + b"1],", b"5]}", 2_000)),
        "inputs, the last is wrong": (_EMBED, _limited(b'{"input":[', b'"' + b"a" * 900 + b'",', b"5]}", 2_000)),
        "a bias of a million": (_COMPLETE, _numbered(ask + b'"logit_bias":{', b'"%08d":1,', b'"1":1}}', 990_000)),
        "a bias spelt in many ways": (
            _COMPLETE,
            lambda size: ask + b'"logit_bias":{' + b",".join(
                b'"%s":1' % str(at % 250).zfill(3 + at // 250).encode() for at in range(1_750)
            ) + b"}}",
        ),
        "a bias for many prompts": (
            _COMPLETE,
            lambda size: b'{"max_tokens":1,"prompt":[' + b"[1]," * 1_999 + b'[1]],"logit_bias":{' + b",".join(
                b'"%s":1' % str(at % 250).zfill(3 + at // 250).encode() for at in range(1_750)
            ) + b"}}",
        ),
        "many ends": (_COMPLETE, _filled(ask + b'"stop":[', b'"a",', b'"b"]}')),
        "one end without end": (_COMPLETE, _filled(ask + b'"stop":"', b"a", b'"}')),
        "many tokens that end": (_COMPLETE, _limited(ask + b'"stop_token_ids":[', token, b"1]}", 990_000)),
        "many tools": (_CHAT, _filled(said + b'"tools":[', tool + b"{}}},", b"0]}")),
        "one tool of many properties": (
            _CHAT,
            _numbered(said + b'"tools":[' + tool + b'{"type":"object","properties":{', b'"p%d":{},',
                      b'"q":{}}}}}]}', 49_000),
        ),
        "one tool of a long text": (
            _CHAT,
            _filled(said + b'"tools":[' + tool + b'{"description":"', b"word ", b'"}}}]}'),
        ),
        "a tool to be called, of many": (
            _CHAT,
            _numbered(said + b'"tool_choice":"required","tools":[' + tool + b'{"type":"object","properties":{',
                      b'"p%d":{},', b'"q":{}}}}}]}', 49_000),
        ),
        "a schema of many properties": (
            _CHAT,
            _numbered(said + b'"response_format":' + schema + b'{"type":"object","properties":{', b'"p%d":{},',
                      b'"q":{}}}}}}', 49_000),
        ),
        "a schema of many words": (
            _CHAT,
            _numbered(said + b'"response_format":' + schema + b'{"enum":[', b'"w%d",', b'"q"]}}}}', 900_000),
        ),
        "a pattern without end": (_CHAT, _filled(said + b'"structured_outputs":{"regex":"', b"(a|b)*", b'"}}')),
        "a pattern of repeats": (_CHAT, lambda size: said + b'"structured_outputs":{"regex":"((a{99}){99}){99}"}}'),
        "a grammar of many rules": (
            _CHAT,
            _numbered(said + b'"structured_outputs":{"grammar":"start: r1\\n', b'r%d: \\"a\\"\\n', b'"}}'),
        ),
        "a choice of long words": (
            _CHAT,
            _limited(said + b'"structured_outputs":{"choice":[', b'"' + b"a" * 9_000 + b'",', b'"b"]}}', 1_020),
        ),
        "much to count": ("/tokenize", _filled(b'{"return_token_strs":true,"prompt":"', b"a ", b'"}')),
        "all that is counted": (
            "/tokenize",
            lambda size: b'{"return_token_strs":true,"prompt":"' + b"a" * 8_000 + b'"}',
        ),
        "many tokens to spell": ("/detokenize", _limited(b'{"tokens":[', token, b"1]}", 990_000)),
        "a compressed bomb": (_CHAT, lambda size: gzip.compress(b"[" * 20 * size)),
    }  # fmt: skip


class _Worker:
    """A worker with a tiny random model, in a process of its own."""

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.worker_probed", str(model)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.port = int(self._line()["port"])
        self._line()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def stall(self) -> tuple[float, float, float]:
        """Return the longest time without a turn of the loop since the last call, in ms.

        By the clock; by what the loop's thread ran meanwhile; by what the process ran, also in other threads. The
        last is what the clock would show on a machine with nothing else to do.
        """
        self._process.send_signal(signal.SIGUSR1)
        found = self._line()
        return found["late_ms"], found["busy_ms"], found["ours_ms"]

    def memory(self, what: str = "VmRSS") -> float:
        """Return resident bytes of the API process, or with VmHWM the most there ever were."""
        return resident(self._process.pid, what)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


class _Streams:
    """An honest caller who streams completions, one after the other."""

    def __init__(self, port: int) -> None:
        self.broken = 0
        self.waits: list[float] = []
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Let the last stream end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
            try:
                connection.request("POST", _COMPLETE, _STREAM, {"Content-Type": "application/json"})
                answer, last, line = connection.getresponse(), time.monotonic(), b""
                while piece := answer.readline():
                    line = piece.strip() or line
                    now = time.monotonic()
                    self.waits.append(1e3 * (now - last))
                    last = now
                self.broken += answer.status != 200 or line != b"data: [DONE]"
            except (OSError, http.client.HTTPException):
                self.broken += 1
            finally:
                connection.close()


def measure(quick: bool) -> list[Bar]:
    """Send four of each kind at once, and watch the loop, the memory and an honest caller's streams."""
    size, patience = (_TASTE, _HASTE_S) if quick else (_WHOLE, _PATIENCE_S)
    late = busy = ours = 0.0
    found = kinds()
    with tempfile.TemporaryDirectory() as folder, _Worker(make_tiny_checkpoint(Path(folder))) as worker:
        _send(worker.port, _COMPLETE, b'{"prompt":"warm","max_tokens":2}')
        streams = _Streams(worker.port)
        worker.stall()
        began = worker.memory()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name, (path, make) in found.items():
                body = make(size)
                asked = time.monotonic()
                statuses = list(pool.map(lambda _: _send(worker.port, path, body, patience), range(_AT_ONCE)))  # noqa: B023
                took = time.monotonic() - asked
                by_clock, at_work, by_us = worker.stall()
                late, busy, ours = max(late, by_clock), max(busy, at_work), max(ours, by_us)
                print(
                    f"  {name:32} {statuses[0]:4} {by_clock:7.1f} ms, {by_us:6.1f} ms by us, {at_work:6.1f} at work, "
                    f"{took:5.2f} s, {worker.memory() / 1e6:5.0f} MB",
                    flush=True,
                )
        streams.stop()
        peak = worker.memory("VmHWM")
    print(f"  the loop was late by {late:.0f} ms at most, whoever had the processor")
    p99 = statistics.quantiles(streams.waits, n=100)[98]
    print(f"  {len(streams.waits)} pieces of streams meanwhile, 99 of 100 within {p99:.0f} ms of the one before")
    return [
        Bar.above("kinds of hostile bodies", len(found), 40),
        Bar.below("longest stall of the loop that the process made, ms", ours, 50.0),
        Bar.below("longest stall of the loop, its thread at work, ms", busy, 50.0),
        Bar.below("the API process's peak memory above its start, MB", (peak - began) / 1e6, 400.0),
        Bar.below("an honest caller's streams that broke", streams.broken, 0),
        Bar.below("between two pieces of them, P99, ms", p99, 250.0),
    ]


def _send(port: int, path: str, body: bytes, patience: float = _PATIENCE_S) -> int:
    """Send a body; return the status of the answer, 0 where there was none in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    headers = {"Content-Type": "application/json"}
    if body[:2] == b"\x1f\x8b":
        headers["Content-Encoding"] = "gzip"
    with contextlib.closing(connection):
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
