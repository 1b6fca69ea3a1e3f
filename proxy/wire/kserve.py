"""The Open Inference Protocol (KServe v2, Triton), JSON and the binary tensor extension."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import BadRequest, Call, Head, MergeMismatch, Repeat, Reply, Route, Tap, Usage, WireFormat
from proxy.wire.envelope import check_shared, own_id
from proxy.wire.faults import bare_error, object_error
from proxy.wire.items import pass_on
from proxy.wire.jsonbody import canonical, load_object, whole
from proxy.wire.prompt import BYTES_PER_TOKEN, Prompt
from proxy.wire.sse import SseTap, comment, holds
from proxy.wire.tensors import Tensor, TensorError, alike_tensors, holds_its_type, join, read_tensors, rows

__all__ = ["KServe"]

INFER = Route("kserve.infer", generates=False, pure=True)
GENERATE = Route("kserve.generate")

_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/(infer|generate|generate_stream)")

JSON_LENGTH: Final = b"inference-header-content-length"
"""How many bytes of the body are JSON; the raw tensors follow."""

_STATEFUL = ("sequence_id", "sequence_start", "sequence_end")
_KNOWN = frozenset({"id", "model_name", "model_version", "outputs"})
_LENGTH_DIGITS: Final = 18


class KServe(WireFormat):
    """The `kserve` wire format.

    Inferences merge along the first dimension of every input, where names, datatypes, the other dimensions,
    parameters and requested outputs are equal, and every element of the data is there and of its type. That the
    first dimension is a batch is the operator's word
    (`dispatch: merge`); outputs whose first dimension is not the sum of what went in are a mismatch, and the
    requests are sent singly.
    """

    name = "kserve"
    routes = (
        INFER,
        GENERATE,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`."""
        found = _PATH.fullmatch(path) if method == "POST" else None
        if found is None:
            return None
        return INFER if found.group(3) == "infer" else GENERATE

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the JSON, or its announced length, is wrong."""
        found = _PATH.fullmatch(head.path)
        call = Call(route=route, body=body, model=found.group(1) if found else "")
        length = _json_length(head.get(JSON_LENGTH), len(body))
        payload = load_object(head, body if length is None else body[:length])
        if payload is None:
            return call
        call.payload = payload
        if route is GENERATE:
            _read_generate(call, streaming=head.path.endswith("_stream"))
        else:
            _read_infer(call, head, b"" if length is None else body[length:], binary=length is not None)
        return call

    def json_size(self, head: Head, body: bytes) -> int:
        """Return where the raw tensors begin. Raises BadRequest."""
        length = _json_length(head.get(JSON_LENGTH), len(body))
        return len(body) if length is None else length

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message}`."""
        return Reply(status, orjson.dumps({"error": message if param is None else f"{param}: {message}"}))

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"error": message}`."""
        return bare_error(document) or object_error(document)

    def owns(self, call: Call) -> bool:
        """Tell that `/v2/models/NAME/infer` and its like are nobody else's."""
        return True

    def repeat(self, call: Call) -> int:
        """Return Repeat.NEVER for a step of a sequence, which the model remembers."""
        parameters = call.payload.get("parameters") if type(call.payload) is dict else None
        if type(parameters) is dict and any(name in parameters for name in _STATEFUL):
            return Repeat.NEVER
        return Repeat.FREELY if call.route.pure else Repeat.ANSWERED

    def stream_error(self, kind: str, message: str) -> bytes:
        """Return an event with an `error` member, as Triton's generate_stream reports one."""
        return b"data: " + orjson.dumps({"error": message}) + b"\n\n"

    def keepalive(self) -> bytes:
        """Return a server-sent comment."""
        return comment()

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a counter of a generation's events; tensors hold no usage."""
        return GenerateStreamTap() if content_type.startswith("text/event-stream") else Tap()

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one body with every input joined along its first dimension."""
        if len(calls) == 1:
            return calls[0].body
        header, blob = _join(calls)
        return header + blob

    def merge_headers(self, calls: Sequence[Call], body: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Return the length of the JSON part of a merged body that has a binary part."""
        if len(calls) == 1 or not calls[0].extra["binary"]:
            return ()
        header, _ = _join(calls)
        return ((JSON_LENGTH, b"%d" % len(header)),)

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Cut every output along its first dimension."""
        if len(calls) == 1 or not 200 <= status < 300:
            return pass_on(calls, status, body, headers)
        cut = _json_end(body, headers)
        try:
            answer = orjson.loads(body[:cut])
            outputs = read_tensors(answer.get("outputs") if type(answer) is dict else None, body[cut:])
        except (orjson.JSONDecodeError, TensorError) as error:
            raise MergeMismatch(f"the answer cannot be split: {error}") from None
        check_shared(answer, _KNOWN)
        sizes = [call.items for call in calls]
        if any(output.batch != sum(sizes) for output in outputs):
            raise MergeMismatch(f"an output's first dimension is not the {sum(sizes)} that went in")
        parts = [rows(output, sizes) for output in outputs]
        replies = []
        for position, call in enumerate(calls):
            mine = [part[position] for part in parts]
            replies.append(_reply(call, position, status, answer, outputs, mine))
        return replies

    def alike(self, part: Reply, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Compare tensors, binary ones by the numbers in them."""
        one, other = _outputs(part.body, part.headers), _outputs(body, headers)
        if one is None or other is None:
            return super().alike(part, body, headers)
        return len(one) == len(other) and all(alike_tensors(*pair) for pair in zip(one, other, strict=True))


class GenerateStreamTap(SseTap):
    """Counts the events of Triton's generate_stream, each of which is one answer; it has no end marker."""

    __slots__ = ()

    def event(self, data: bytes) -> None:
        """Look at one event."""
        if holds(data, b"error") and (data.startswith(b"event:") or holds(data, b'"error"')):
            self.suspect(data)
        elif data.startswith(b"data:"):
            self.tokens_seen += 1

    def usage(self) -> Usage:
        """Return the number of events."""
        return Usage(output_tokens=self.tokens_seen or None)


def _json_length(value: str | None, size: int) -> int | None:
    if value is None:
        return None
    length = _digits(value)
    if length is None or length > size:
        raise BadRequest(
            f"Inference-Header-Content-Length must be a number of bytes of the body ({size}), not {value[:40]!r}",
            param="Inference-Header-Content-Length",
        )
    return length


def _json_end(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return where the JSON of an answer ends. Raises MergeMismatch when that is beyond its end."""
    length = next((value for name, value in headers if name.lower() == JSON_LENGTH), None)
    if length is None:
        return len(body)
    announced = _digits(length.decode("latin-1"))
    if announced is None or announced > len(body):
        raise MergeMismatch("the answer's JSON length is wrong")
    return announced


def _outputs(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> list[Tensor] | None:
    """Return the outputs of an answer; None when it holds none that can be read."""
    try:
        cut = _json_end(body, headers)
        answer = orjson.loads(body[:cut])
        return read_tensors(answer.get("outputs") if type(answer) is dict else None, body[cut:])
    except (orjson.JSONDecodeError, TensorError, MergeMismatch):
        return None


def _digits(value: str) -> int | None:
    """Return a length; None for what is none, or longer than any there is."""
    digits = value.lstrip("0") or value[:1]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _LENGTH_DIGITS else None


def _read_generate(call: Call, *, streaming: bool) -> None:
    prompt = Prompt()
    text = call.payload.get("text_input")
    if type(text) is str:
        prompt.add(text)
    call.stream = streaming
    call.prompt_tokens, call.text = prompt.tokens, prompt.text
    parameters = call.payload.get("parameters")
    holder = parameters if type(parameters) is dict else call.payload
    call.max_tokens = whole(holder.get("max_tokens"))


def _read_infer(call: Call, head: Head, blob: bytes, *, binary: bool) -> None:
    """Fill in the inputs of an inference, its batch, and the key under which it may be merged."""
    call.prompt_tokens = len(call.body) // BYTES_PER_TOKEN + 1
    try:
        tensors = read_tensors(call.payload.get("inputs"), blob)
    except TensorError:
        return
    batch = tensors[0].batch
    # A shape with a 0 in it says whatever it likes in its other places: no byte bears it out.
    if any(not tensor.shape or 0 in tensor.shape or tensor.batch != batch for tensor in tensors):
        return
    call.items = batch
    if not all(map(holds_its_type, tensors)):
        return
    parameters = call.payload.get("parameters")
    if type(parameters) is dict and any(name in parameters for name in _STATEFUL):
        return
    rest = canonical(call.payload, ("inputs", "id"))
    shapes = [_signature(tensor) for tensor in tensors]
    if rest is None or None in shapes or len({tensor.name for tensor in tensors}) != len(tensors):
        return
    call.extra.update(tensors=tensors, binary=binary)
    call.compat_key = (call.route.name, head.target, binary, rest, tuple(shapes))


def _signature(tensor: Tensor) -> Hashable | None:
    """Return what must be equal for two tensors to be joined; None when that cannot be told."""
    parameters = tensor.meta.get("parameters")
    rest = canonical(parameters, ("binary_data_size",)) if type(parameters) is dict else b"{}"
    others = canonical(tensor.meta, ("name", "datatype", "shape", "data", "parameters"))
    if rest is None or others is None:
        return None
    return (tensor.name, tensor.datatype, tensor.shape[1:], tensor.form, rest, others)


def _join(calls: Sequence[Call]) -> tuple[bytes, bytes]:
    """Return the JSON and the binary part of the merged body."""
    everybody: list[list[Tensor]] = [call.extra["tensors"] for call in calls]
    metas, blobs = [], []
    for tensors in zip(*everybody, strict=True):
        shape, data = join(tensors)
        meta = {**tensors[0].meta, "shape": shape}
        if tensors[0].form == "binary":
            meta["parameters"] = {**meta["parameters"], "binary_data_size": len(data)}
            blobs.append(data)
        else:
            meta["data"] = data
        metas.append(meta)
    # The call is nobody's own: it goes without an id.
    rest = {name: value for name, value in calls[0].payload.items() if name != "id"}
    return orjson.dumps({**rest, "inputs": metas}), b"".join(blobs)


def _reply(
    call: Call, position: int, status: int, answer: dict[str, Any], outputs: Sequence[Tensor], mine: Sequence[Any]
) -> Reply:
    """Put one caller's rows into an answer of its own, under its own id."""
    metas, blobs = [], []
    for output, data in zip(outputs, mine, strict=True):
        meta = {**output.meta, "shape": [call.items, *output.shape[1:]]}
        if output.form == "binary":
            meta["parameters"] = {**meta["parameters"], "binary_data_size": len(data)}
            blobs.append(data)
        else:
            meta["data"] = data
        metas.append(meta)
    envelope = {**answer, "outputs": metas}
    if "id" in call.payload:
        envelope.pop("id", None)
        envelope = {"id": call.payload["id"], **envelope}
    elif "id" in envelope:
        envelope["id"] = own_id(envelope["id"], position)
    header = orjson.dumps(envelope)
    if not blobs:
        return Reply(status, header)
    length = (JSON_LENGTH.title(), b"%d" % len(header))
    return Reply(status, header + b"".join(blobs), "application/octet-stream", (length,))
