"""Where ids stand of what an upstream keeps: in paths, in what is asked and in what is answered.

That is OpenAI's API and what follows it, Anthropic's files and batches included. Ids pass unchanged. Of an answer
only the protocol's own members are believed: others may repeat what a caller wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

from proxy.wire.base import Tap
from proxy.wire.sse import SseTap, event_data

__all__ = [
    "READ_BYTES",
    "Answered",
    "DocumentTap",
    "EventsTap",
    "Place",
    "answered",
    "in_chat",
    "keeps",
    "named",
    "place_of",
    "proven",
]

READ_BYTES: Final = 65_536
"""So much of a body is looked through for ids."""
_MOST: Final = 16
"""So many ids of one request or answer are looked at."""
_LONGEST_PATH: Final = 1_024
_SURELY_MINTED: Final = 20
"""Characters from which on a path's segment is no word of the protocol's (`compact`, `input_tokens`)."""
_HEAD: Final = 4_096
_EVENTS: Final = 32
"""So many events are read to find an id: it stands in the first of them."""

_PLACE = re.compile(
    r"(?:(?:/.*?)?(?:/v[0-9]+(?:alpha|beta)?[0-9]*|/openai(?:/deployments/[^/]+)?)(?=/)|(?=/responses(?:/|$)))"
    r"/(responses|conversations|files|batches|containers|threads|assistants|vector_stores|uploads|videos|evals|skills"
    r"|fine_tuning/jobs|chat/completions|messages/batches|messages)(?:/([^/]+)(/.*)?)?/?"
)
_CASUAL = frozenset({"chat/completions", "messages"})
"""What is a chat first of all, and only sometimes refers to a file or is stored."""
_STATE = ("previous_response_id", "conversation")
"""Members of a response's request; one that was served shows that its server knows them."""

_NAMES = (
    b'"previous_response_id"', b'"conversation"', b'"conversation_id"', b'"thread_id"', b'"input_file_id"',
    b'"file_id"', b'"file_ids"', b'"vector_store_id"', b'"vector_store_ids"', b'"assistant_id"', b'"batch_id"',
    b'"container"', b'"container_id"', b'"training_file"', b'"validation_file"',
)  # fmt: skip
"""Members of a request that refer to something, at whatever depth."""
_LOOKS: Final = 16
"""So many members of one name are looked at."""
_VALUE = re.compile(rb'\s*+:\s*+(?:"([^"\\]{1,256})"|\[([^\[\]{}]{0,8192})\])')
_ENTRY = re.compile(rb'"([^"\\]{1,256})"')
_IN_CHAT = (b'"file_id"', b'"container"')

_PLAIN = rb'(?:\s*+"[^"\\]*+"\s*+:\s*+(?:"(?:[^"\\]|\\.)*+"|[^\s,{}\[\]"]++)\s*+,)*?'
"""Members without anything nested in them."""
_OWN_ID = rb'\s*+"id"\s*+:\s*+"([^"\\]{1,256})"'
_TOP_ID = re.compile(rb"\s*+\{" + _PLAIN + _OWN_ID, re.DOTALL)
"""The id of an object, where nothing nested stands before it."""
_STREAM_ID = re.compile(
    rb"(?:(?!data:)[^\r\n]*+\r?\n)*+data: ?\{" + _PLAIN + rb'\s*+"response"\s*+:\s*+\{' + _PLAIN + _OWN_ID, re.DOTALL
)
"""The same, inside the first event of a response's stream."""
_BESIDE = (
    "conversation", "thread_id", "container_id", "output_file_id", "error_file_id", "file", "thread", "container",
)  # fmt: skip
"""Members of an answer that name, or are, other things that its maker keeps."""


class Place(NamedTuple):
    """What a method and path have to do with what upstreams keep."""

    collection: str
    id: str
    """The one that the path names; empty for none."""
    creates: bool
    """Whether a good answer is something new."""
    reads: bool
    """Whether the body may refer to others."""
    casual: bool
    """Whether that is the exception."""


class Answered(NamedTuple):
    """The ids of an answer."""

    made: str
    """The object's own; empty where there is none."""
    beside: tuple[str, ...]
    """Those of others that its maker keeps, too."""


def place_of(method: str, path: str) -> Place | None:
    """Return what a request to `path`, decoded and without its query, has to do with ids; None for nothing."""
    found = _PLACE.fullmatch(path) if len(path) <= _LONGEST_PATH else None
    if found is None:
        return None
    collection, id = found.group(1), found.group(2) or ""
    if collection == "threads" and id == "runs":
        id = ""
    if not id and method != "POST":
        return None
    casual = collection in _CASUAL and not id
    creates = method == "POST" and not id and collection != "messages"
    return Place(collection, id, creates, method == "POST", casual)


def in_chat(body: bytes) -> bool:
    """Tell whether a chat may refer to anything that is kept."""
    return any(body.find(hint, 0, READ_BYTES) >= 0 for hint in _IN_CHAT)


def proven(place: Place, payload: Any) -> tuple[str, ...]:
    """Return the ids of a request that whoever serves it must know."""
    found = [place.id, *(_of(payload, name) for name in _STATE if place.collection == "responses")]
    return tuple([id for id in found if len(id) >= _SURELY_MINTED or any("0" <= each <= "9" for each in id)])


def keeps(place: Place, payload: Any) -> bool:
    """Tell whether what is asked for will be kept: responses unless they say no, chats where they say so."""
    if place.casual:
        return place.creates and type(payload) is dict and payload.get("store") is True
    if place.collection == "responses" and type(payload) is dict:
        return payload.get("store") is not False
    return True


def named(place: Place, payload: Any, body: bytes) -> tuple[str, ...]:
    """Return the ids that a request refers to, the most telling first.

    `payload` is its parsed form, where there is one, and `body` is JSON, b"" where it is not to be looked into.
    """
    found = [place.id] if place.id else []
    if place.collection == "responses":
        found += [id for name in _STATE if (id := _of(payload, name))]
    if place.reads and body and (not place.casual or in_chat(body)):
        found += _inside(body)
    return tuple(dict.fromkeys(found))[:_MOST]


def _inside(body: bytes) -> list[str]:
    """Return what the members of a body refer to. Searching for each name costs less than looking at each quote."""
    found: list[bytes] = []
    for name in _NAMES:
        at = body.find(name, 0, READ_BYTES)
        looks = _LOOKS
        while at >= 0 and looks:
            looks -= 1
            at += len(name)
            value = _VALUE.match(body, at, READ_BYTES)
            if value is not None:
                single: bytes | None = value.group(1)
                found += [single] if single is not None else _ENTRY.findall(value.group(2))[:_MOST]
            at = body.find(name, at, READ_BYTES)
    return [each.decode("utf-8", "replace") for each in found]


def answered(data: bytes) -> Answered | None:
    """Return the ids of an answer, a whole JSON object; None where it has none."""
    if len(data) > READ_BYTES:
        found = _TOP_ID.match(data, 0, _HEAD)
        return None if found is None else Answered(found.group(1).decode("utf-8", "replace"), ())
    try:
        return _ids_of(orjson.loads(data))
    except orjson.JSONDecodeError:
        return None


def _ids_of(document: Any) -> Answered | None:
    if type(document) is not dict:
        return None
    made = document.get("id")
    beside = [id for name in _BESIDE if (id := _of(document, name))]
    results = document.get("result_files")
    if type(results) is list:
        beside += [id for id in results[:_MOST] if type(id) is str]
    if type(made) is not str and not beside:
        return None
    return Answered(made if type(made) is str else "", tuple(beside[:_MOST]))


def _of(document: Any, name: str) -> str:
    """Return the id that a member is, or that the object has which it is."""
    if type(document) is not dict:
        return ""
    value = document.get(name)
    if type(value) is dict:
        value = value.get("id")
    return value if type(value) is str else ""


class DocumentTap(Tap):
    """Reads the ids of an answer that comes in pieces, once it is over."""

    __slots__ = ("_found", "_parts", "_size")

    def __init__(self, found: Callable[[Answered], None]) -> None:
        self._found = found
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Keep the next piece, as far as it will be read."""
        if self._size <= READ_BYTES:
            self._parts.append(data[: READ_BYTES + 1])
            self._size += len(data)

    def close(self) -> None:
        """The answer is over."""
        parts, self._parts = self._parts, []
        ids = answered(b"".join(parts)) if parts else None
        if ids is not None:
            self._found(ids)


class EventsTap(SseTap):
    """Reads the id of what a stream is about from the first of its events that says it."""

    __slots__ = ("_found", "_head", "_left")

    def __init__(self, found: Callable[[Answered], None]) -> None:
        super().__init__()
        self._found = found
        self._head = b""
        self._left = _EVENTS

    def feed(self, data: bytes) -> None:
        """Look at the next piece; nothing more once the id is known."""
        if not self._left:
            return
        if len(self._head) < _HEAD:
            # An event with long instructions in it is not kept whole.
            self._head += data[:_HEAD]
            found = _STREAM_ID.match(self._head)
            if found is not None:
                self._tell(Answered(found.group(1).decode("utf-8", "replace"), ()))
                return
        super().feed(data)

    def event(self, data: bytes) -> None:
        """Look at one event."""
        if not self._left or data.find(b'"id"') < 0:
            return
        self._left -= 1
        try:
            document = orjson.loads(event_data(data))
        except orjson.JSONDecodeError:
            return
        ids = _ids_of(document.get("response", document) if type(document) is dict else None)
        if ids is not None and ids.made:
            self._tell(ids)

    def close(self) -> None:
        """The stream is over."""

    def _tell(self, ids: Answered) -> None:
        self._left = 0
        self._found(ids)
