"""Bodies made to cost as much as they can: nesting, width, escapes, numbers, many of everything, and no end."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bars import Bar
from benchmarks.hostile.around import Honest, Probed, server

__all__ = ["hidden", "kinds", "measure"]

_AT_ONCE = 4
_PATIENCE_S = 300.0
_WHOLE, _TASTE = 33_000_000, 1_200_000
_CHAT = "/v1/chat/completions"


def _filled(before: bytes, piece: bytes, after: bytes) -> Callable[[int], bytes]:
    return lambda size: before + piece * ((size - len(before) - len(after)) // len(piece)) + after


def _numbered(before: bytes, piece: bytes, after: bytes) -> Callable[[int], bytes]:
    """Return what makes bodies in which every piece is another one."""

    def make(size: int) -> bytes:
        count = (size - len(before) - len(after)) // (len(piece) + 6)
        return before + b"".join([piece % number for number in range(count)]) + after

    return make


def _chunked(piece: bytes) -> Callable[[int], bytes]:
    return lambda size: piece * (size // len(piece) // 2) + b"0\r\n\r\n"


def kinds() -> dict[str, tuple[str, dict[str, str], Callable[[int], bytes]]]:
    """Return path, fields and maker of every kind of body."""
    head, tail = b'{"model":"m","messages":[', b"]}"
    said = b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}'
    found: dict[str, tuple[str, dict[str, str], Callable[[int], bytes]]] = {}

    def add(name: str, make: Callable[[int], bytes], path: str = _CHAT, **fields: str) -> None:
        found[name] = (path, {key.replace("_", "-"): value for key, value in fields.items()}, make)

    for name, piece, last in (
        ("empty lists", b"[],", b"0"), ("empty objects", b"{},", b"0"), ("objects", b'{"a":1},', b"0"),
        ("digits", b"7,", b"0"), ("numbers", b"71234,", b"0"), ("fractions", b"0.123456,", b"0"),
        ("numbers beyond 64 bits", b"18446744073709551616,", b"0"), ("exponents", b"1e308,", b"0"),
        ("words", b"null,", b"0"), ("short strings", b'"a",', b"0"), ("empty strings", b'"",', b"0"),
        ("nesting of 900 levels", b"[" * 900 + b"]" * 900 + b",", b"0"),
        ("nesting of objects", b'{"a":' * 300 + b"0" + b"}" * 300 + b",", b"0"),
        ("many short messages", b'{"role":"user","content":"hi"},', b'{"role":"user","content":"hi"}'),
        ("many parts of content", b'{"role":"user","content":[{"type":"text","text":"a"}]},', b"0"),
        ("spaces", b"                ", b"0"), ("line ends", b"\r\n", b"0"),
    ):  # fmt: skip
        add(name, _filled(head, piece, last + tail))
    for name, piece in (
        ("one long text", b"word "), ("one string without end", b"x"), ("emoji", "\U0001f600".encode()),
        ("accents", "é".encode()), ("escaped letters", b"\\u0041"), ("escaped quotes", b'\\"'),
        ("backslashes", b"\\\\"), ("half pairs", b"\\ud83d"),
        ("invalid UTF-8", b"\xff\xfe"), ("null bytes", b"\\u0000"),
        ("brackets in a string", b"[{"),
    ):  # fmt: skip
        add(name, _filled(said[0], piece, said[1]))
    add("one emoji and much else", _filled(said[0] + "\U0001f600".encode(), b"a", said[1]))
    add("no end of a string", _filled(said[0], b"x", b""))
    add("no end of a list", _filled(head, b"[],", b""))
    add("no end of nesting", _filled(head, b"[", b""))
    add("a number of millions of digits", _filled(head, b"9", tail))
    add("a fraction of millions of digits", _filled(head + b"0.", b"9", tail))
    add("many names", _numbered(b"{", b'"k%d":1,', b'"model":"m"}'))
    add("one name again and again", _filled(b"{", b'"model":"m",', b'"model":"m"}'))
    add("long names", _filled(b'{"', b"k" * 99 + b'":1,"', b'":1}'))
    add("names with escapes", _filled(b"{", b'"mod\\u0065l":"m",', b'"x":1}'))
    add("a model's name without end", _filled(b'{"model":"', b"m", b'"}'))
    add("tools", _filled(b'{"model":"m","tools":[', b'{"type":"function","function":{"name":"f"}},', b"{}]}"))
    add(
        "a picture",
        _filled(b'{"messages":[{"content":[{"image_url":{"url":"data:image/png;base64,', b"iVBO", b'"}}]}]}'),
    )
    add("no object but a list", _filled(b"[", b"[],", b"0]"))
    add("no JSON at all", _filled(b"", b"GET / ", b""))
    add("not a number", _filled(head, b"NaN,", b"0" + tail))
    add("JSON twice", _filled(head + tail, head + tail, b""))
    add("spaces behind", _filled(head + tail, b" ", b""))
    add("a compressed bomb", lambda size: zlib.compress(b"[" * 20 * size), Content_Encoding="deflate")
    add("many inputs", _numbered(b'{"model":"m","input":[', b'"text %d",', b'"x"]}'), "/v1/embeddings")
    add("inputs of tokens", _filled(b'{"model":"m","input":[', b"[1,2,3],", b"[1]]}"), "/v1/embeddings")
    add("one input of tokens", _filled(b'{"model":"m","input":[', b"1,", b"1]}"), "/v1/embeddings")
    add("many prompts", _filled(b'{"model":"m","prompt":[', b'"x",', b'"x"]}'), "/v1/completions")
    add("many documents", _filled(b'{"query":"q","documents":[', b'"d",', b'"d"]}'), "/v1/rerank")
    add("blocks of content", _filled(b'{"messages":[{"content":[', b'{"type":"text"},', b"{}]}]}"), "/v1/messages")
    add("a tensor", _filled(b'{"inputs":[{"name":"x","shape":[1],"data":[', b"0.5,", b"0]}]}"), "/v2/models/m/infer")
    add("many tensors", _filled(b'{"inputs":[', b'{"name":"x"},', b"{}]}"), "/v2/models/m/infer")
    add(
        "elements of no length",
        _filled(b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[9],"parameters":{}}]}', b"\0\0\0\0", b""),
        "/v2/models/m/infer",
        Inference_Header_Content_Length="74",
    )
    add("instances", _filled(b'{"instances":[', b"[[0]],", b"[]]}"), "/v1/models/m:predict")
    add("many parts", _filled(b"", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\ny\r\n', b"--b--\r\n"),
        "/v1/audio/transcriptions", Content_Type="multipart/form-data; boundary=b")  # fmt: skip
    add("chunks of one byte", _chunked(b"1\r\n[\r\n"), Transfer_Encoding="chunked")
    add("chunks with trailers", _chunked(b"1\r\n[\r\n"), Transfer_Encoding="chunked", Trailer="x")
    add("chunks with extensions", _chunked(b"1;a=b\r\n[\r\n"), Transfer_Encoding="chunked")
    return found


def hidden() -> dict[str, tuple[str, dict[str, str], Callable[[int], bytes]]]:
    """Return what makes it hard to find the model, sent to a proxy that has to replace it: path, fields, maker."""
    form, part = (
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=b"},
    )
    field = b"\r\nContent-Disposition: form-data; name="
    said = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    chat = lambda _: said  # noqa: E731
    return {
        "a form of one field": ("/any", form, _filled(b"", b"x", b"")),
        "a form of many fields": ("/any", form, _filled(b"", b"&a=b", b"")),
        "a form of many models": ("/any", form, _filled(b"model=m", b"&model=m", b"")),
        "parts that name a model": ("/any", part, _filled(b"--b", field + b"model", b"")),
        "parts that name none": ("/any", part, _filled(b"--b", field + b"y\r\n\r\nz\r\n--b", b"--")),
        "a part without end": ("/any", part, _filled(b"--b\r\nContent-Disposition: x; name=y\r\n", b"a: b\r\n", b"")),
        "a path of models": ("/v1/models/x" * 1_300 + ":!", {}, chat),
        "a path of digits": ("/v" + "1" * 16_000, {}, chat),
        "a query of models": (_CHAT + "?x" + "&model=m" * 2_000, {}, chat),
        "light members": (_CHAT, {}, lambda _: _numbered(b"{", b'"k%d":1,', b'"model":"m"}')(100_000)),
        "a bomb": ("/any", {"Content-Encoding": "gzip", "Content-Type": "application/json"},
                   lambda _: gzip.compress(b'{"model":"m","x":[' + b"[]," * 2_600_000 + b"0]}", 1)),
    }  # fmt: skip


def measure(quick: bool) -> list[Bar]:
    """Send four of each kind at once, and watch the loop, the memory and an honest caller."""
    size = _TASTE if quick else _WHOLE
    with server() as upstream:
        with Probed(upstream) as proxy:
            late, busy, peak, p99, failures = _send_all(proxy, kinds(), size)
        renamed = json.dumps([{"url": f"http://127.0.0.1:{upstream}", "model": "m"}])
        with Probed(upstream, f"upstreams={renamed}") as proxy:
            found = _send_all(proxy, hidden(), size)
    late, busy, peak, p99 = (max(pair) for pair in zip((late, busy, peak, p99), found[:4], strict=True))
    return [
        Bar.above("kinds of hostile bodies", len(kinds()) + len(hidden()), 40),
        Bar.below("longest stall of the loop, by the clock, ms (others' work on these cores included)", late, 20.0),
        Bar.below("longest stall of the loop, by its own CPU time, ms", busy, 20.0),
        Bar.below("peak resident memory, MB", peak, 350.0),
        Bar.below("an honest caller's P99, ms", p99, 50.0),
        Bar.below("its requests that failed", failures + found[4], 0),
    ]


def _send_all(
    proxy: Probed, found: dict[str, tuple[str, dict[str, str], Callable[[int], bytes]]], size: int
) -> tuple[float, float, float, float, int]:
    """Return the longest stall by the clock and at work in ms, the peak in MB, an honest P99 and its failures."""
    late = busy = 0.0
    honest = Honest(proxy.data)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for name, (path, fields, make) in found.items():
            body = make(size)
            if "Transfer-Encoding" not in fields:
                fields = {**fields, "Content-Length": str(len(body))}
            lines = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
            message = f"POST {path} HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode() + body
            statuses = list(pool.map(lambda _: _send(proxy.data, message), range(_AT_ONCE)))  # noqa: B023
            by_clock, at_work = proxy.stall()
            late, busy = max(late, by_clock), max(busy, at_work)
            peak = proxy.memory("VmHWM") / 1e6
            print(
                f"  {name:32} {statuses[0]:4} {by_clock:7.1f} ms, {at_work:7.1f} ms at work, {peak:5.0f} MB",
                flush=True,
            )
    p99, asked, failures = honest.stop()
    print(f"  an honest caller asked {asked} times meanwhile")
    return late, busy, proxy.memory("VmHWM") / 1e6, p99, failures


def _send(port: int, message: bytes) -> int:
    """Send a message as fast as it is taken; return the status of the answer, 0 where there was none."""
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as sock:
        with contextlib.suppress(OSError):  # it may be refused before its end
            sock.sendall(message)
        try:
            answer = sock.recv(64)
        except OSError:
            return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
