"""Bodies made to cost as much as they can: nesting, width, escapes, numbers, many of everything, and no end."""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bars import Bar
from benchmarks.hostile.around import Honest, Probed, server

__all__ = ["kinds", "measure"]

_AT_ONCE = 4
_PATIENCE_S = 120.0
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


def measure(quick: bool) -> list[Bar]:
    """Send four of each kind at once, and watch the loop, the memory and an honest caller."""
    size, late, busy = _TASTE if quick else _WHOLE, 0.0, 0.0
    found = kinds()
    with server() as upstream, Probed(upstream) as proxy:
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
        peak = proxy.memory("VmHWM") / 1e6
    print(f"  an honest caller asked {asked} times meanwhile")
    return [
        Bar.above("kinds of hostile bodies", len(found), 40),
        Bar.below("longest stall of the loop, by the clock, ms", late, 20.0),
        Bar.below("longest stall of the loop, at work, ms", busy, 20.0),
        Bar.below("peak resident memory, MB", peak, 350.0),
        Bar.below("an honest caller's P99, ms", p99, 50.0),
        Bar.below("its requests that failed", failures, 0),
    ]


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
