"""What every wire format answers about a request, an answer and an error."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from mypy_extensions import mypyc_attr

from proxy.wire.alike import alike
from proxy.wire.faults import Fault, load_error, status_of
from proxy.wire.naming import Named

__all__ = [
    "LARGEST_COUNT",
    "BadRequest",
    "Call",
    "Head",
    "MergeMismatch",
    "Repeat",
    "Reply",
    "Route",
    "Tap",
    "Usage",
    "WireFormat",
]


class BadRequest(Exception):
    """The request is malformed in its own protocol's terms; answered with 400 at once."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, certain: bool = True
    ) -> None:
        super().__init__(message)
        self.certain = certain
        """Whether any server of the protocol refuses this, not only a strict one."""
        self.message = message
        self.param = param
        self.code = code


class MergeMismatch(Exception):
    """An answer to a merged call does not map one to one onto its items. Never guess: send singly."""


@dataclass(slots=True, init=False)
class Head:
    """The request line and headers as they came in."""

    method: str
    path: str
    """Decoded path without the query."""
    target: str
    """Raw path and query, exactly as the client sent them."""
    headers: Sequence[tuple[bytes, bytes]]
    """In order, duplicates kept, names as sent."""

    def __init__(self, method: str, path: str, target: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.method = method
        self.path = path
        self.target = target
        self.headers = headers

    def get(self, name: bytes) -> str | None:
        """Return the first header called `name` (lower case), decoded as latin-1."""
        for key, value in self.headers:
            if len(key) == len(name) and key.lower() == name:
                return value.decode("latin-1")
        return None


class Repeat:
    """Whether a request may be sent a second time, once an upstream may have read it."""

    NEVER: Final = 0
    """It changes something there, or nobody knows."""
    ANSWERED: Final = 1
    """After an answer that says it failed. After a death the first try may go on, and would be paid for twice."""
    FREELY: Final = 2
    """Always: the answer is a function of the request, and cheap."""


class Route:
    """One operation of a protocol. There is one object of each; nobody changes one."""

    __slots__ = ("auto_merge", "generates", "inspect", "name", "pure", "queued")

    def __init__(
        self,
        name: str,
        inspect: bool = True,
        queued: bool = True,
        generates: bool = True,
        auto_merge: bool = False,
        pure: bool = False,
    ) -> None:
        self.name = name
        """A bounded label for metrics, e.g. `chat.completions`."""
        self.inspect = inspect
        """Whether the body is read and parsed; otherwise it is relayed as it comes."""
        self.queued = queued
        """Whether it is accelerator work that waits its turn; listings and health checks do not."""
        self.generates = generates
        """Whether the answer grows token by token; embeddings, scores and listings do not."""
        self.auto_merge = auto_merge
        """Whether the protocol itself defines its calls as lists of independent items, so that calls with equal keys
        may merge under `dispatch: auto` at a server that speaks it. Where that needs the operator's word (a first
        dimension that is a batch, a reranker that scores documents one by one), only under `dispatch: merge`."""
        self.pure = pure
        """Whether the answer is a function of the request alone and nothing is kept of it, so that asking twice does
        no harm and costs little."""


@dataclass(slots=True, init=False)
class Call:
    """What a wire format understood of one request."""

    route: Route
    body: bytes
    """Exactly what the client sent; forwarded as it is unless something had to be merged."""
    model: str
    stream: bool
    items: int
    """Units that count against max_batch_size (inputs of an embeddings call; 1 for a chat)."""
    prompt_tokens: int
    """Estimate over all items."""
    max_tokens: int | None
    """The caller's bound on output tokens; None when absent or meaningless."""
    compat_key: Hashable | None
    """Calls with equal keys may share one upstream call; None means never."""
    payload: Any
    """The wire format's own parsed form."""
    named: Named | None
    """Where the body names its model, where somebody has looked."""
    certain: bool
    """Whether its path is the protocol's beyond doubt, so that no other server can mean something else by it."""
    text: str
    """Prompt text for the length predictor (bounded); empty when there is none."""
    extra: dict[str, Any]

    def __init__(
        self,
        route: Route,
        body: bytes,
        model: str = "",
        stream: bool = False,
        items: int = 1,
        prompt_tokens: int = 0,
        max_tokens: int | None = None,
        compat_key: Hashable | None = None,
        payload: Any = None,
        text: str = "",
        extra: dict[str, Any] | None = None,
    ) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.route = route
        self.body = body
        self.model = model
        self.stream = stream
        self.items = items
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.compat_key = compat_key
        self.payload = payload
        self.text = text
        self.named: Named | None = None
        self.certain = False
        self.extra = {} if extra is None else extra

    def forget(self) -> None:
        """Let go of everything parsed. It cannot be merged any more."""
        self.payload = None
        self.compat_key = None
        self.extra = {}


@dataclass(slots=True, init=False)
class Reply:
    """One client's whole answer, split off a merged one. Nobody changes one."""

    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[bytes, bytes], ...]
    """Headers that belong to this body, beside content-type and content-length."""

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


LARGEST_COUNT: Final = 1_000_000_000
"""What claims to be more tokens than that is no count: one absurd answer must not spoil every sum it goes into."""


@dataclass(slots=True, init=False)
class Usage:
    """Token counts read from an answer; None where the answer does not say."""

    prompt_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None

    def __init__(
        self, prompt_tokens: int | None = None, output_tokens: int | None = None, finish_reason: str | None = None
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.finish_reason = finish_reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Tap:
    """Reads usage from an answer as it passes by. Never alters it; keeps a bounded tail.

    `feed` sees every body piece in any split; the result must not depend on the split.
    """

    tokens_seen: int = 0
    """Output tokens or token-bearing events so far; for live counts while a stream runs."""
    suspects: tuple[bytes, ...] = ()
    """The latest events that may be errors, a handful at most."""

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the body."""

    def at_boundary(self) -> bool:
        """Whether what has passed so far ends between two events, so that a comment may be put in."""
        return True

    def over(self) -> None:
        """The framing says that this was all: the last event counts if it is plainly whole."""

    def finished(self) -> bool:
        """Whether the protocol's own terminal marker has passed, where there is one."""
        return False

    def marks_end(self) -> bool:
        """Whether the protocol has such a marker."""
        return False

    def ended(self) -> bool:
        """Whether the answer is complete: the marker has passed, or what says the same where servers leave it out."""
        return self.finished()

    def torn(self) -> bool:
        """Whether what has passed stops in the middle of a line."""
        return False

    def own(self) -> bool:
        """Whether anything of the protocol has been recognised in what passed."""
        return self.tokens_seen > 0

    def suspect(self, event: bytes) -> None:
        """Keep an event that may be an error, for whoever judges the stream."""
        self.suspects = (*self.suspects[-3:], event)

    def usage(self) -> Usage:
        """Return what is known now."""
        return Usage()


@mypyc_attr(allow_interpreted_subclasses=True)
class WireFormat:
    """One protocol. Stateless; one instance serves all pools.

    The base class is the passthrough format: it claims nothing, merges nothing and answers in plain JSON.
    """

    name: ClassVar[str] = "passthrough"
    routes: ClassVar[tuple[Route, ...]] = ()
    """Every operation it may claim."""
    varying: ClassVar[frozenset[str]] = frozenset({"created", "id", "usage"})
    """Members of an answer that differ from one time to the next, though what was asked is the same."""

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation that `method path` is in this protocol, or None."""
        return None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest."""
        return Call(route=route, body=body)

    def json_size(self, head: Head, body: bytes) -> int:
        """Return how many bytes of `body`, from its beginning, are JSON. Raises BadRequest."""
        return len(body)

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return an error answer in the protocol's own shape. `kind` is a short machine-readable reason."""
        raise NotImplementedError

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether a JSON object with a member `error` is an error in this protocol, and no answer to `call`."""
        return False

    def fault(self, call: Call, data: bytes) -> Fault | None:
        """Return the error that `data` is, an answer to `call` or one event's data; None when it is none."""
        document = load_error(data)
        if document is None or not self.error_in(call, document):
            return None
        return Fault(status_of(document), data)

    def owns(self, call: Call) -> bool:
        """Tell whether no other protocol's server can be meant by `call`."""
        return call.certain

    def repeat(self, call: Call) -> int:
        """Return how often an upstream may be asked for the same: a value of `Repeat`."""
        return Repeat.FREELY if call.route.pure else Repeat.ANSWERED

    def stream_error(self, kind: str, message: str) -> bytes:
        """Return the frame that tells a reader of a half-sent stream that it broke; b"" where there is none."""
        return b""

    def keepalive(self) -> bytes:
        """Return a frame that readers ignore, to keep idle connections open; b"" where there is none."""
        return b""

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a reader for the answer to `call`."""
        return Tap()

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one upstream body for calls of one compat_key, items in order."""
        raise NotImplementedError

    def merge_headers(self, calls: Sequence[Call], body: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Return headers (names lower case) that the merged `body` needs in place of the first call's own."""
        return ()

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Split the answer to `merge(calls)` into one reply per call, in the order of `calls`.

        `headers` are the answer's. A status other than 2xx concerns everybody: each call gets the answer as it
        is. Raises MergeMismatch when the answer does not map one to one onto the items.
        """
        raise NotImplementedError

    def recognises(self, call: Call, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a 200 to `call` alone has what only servers of this protocol answer such a call with.

        Asked of operations that merge unasked (`Route.auto_merge`), where nobody has said what the server is.
        """
        return False

    def alike(self, part: Reply, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a part of a merged answer says the same as `body` and `headers`, its request's answer alone."""
        return alike(part.body, body, self.varying)
