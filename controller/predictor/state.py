"""What the predictor knows as lines of text, each made and read in well under a millisecond.

The first line names the format, the last one counts and digests the others, so that half a state, or one that was
tampered with, is refused. Between them, `section<TAB>JSON`; lines of the learned model are its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any

__all__ = ["VERSION", "StateError", "read", "write"]

KIND, VERSION = "trimtab-predictor", 2

MODEL = "model"
"""The section whose lines are not JSON to us."""


class StateError(ValueError):
    """The lines are no state that this version wrote."""


def write(sections: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield the lines of a state: a heading, (section, JSON-ready page) pairs, and the seal."""
    digest = blake2b(digest_size=16)
    count = 0
    for name, page in chain([("head", [KIND, VERSION])], sections):
        text = page if name == MODEL else json.dumps(page, separators=(",", ":"))
        line = f"{name}\t{text}"
        digest.update(line.encode("utf-8", "surrogatepass"))
        count += 1
        yield line
    yield f"seal\t{json.dumps([count, digest.hexdigest()])}"


def read(lines: Iterable[str]) -> dict[str, list[Any]]:
    """Return the pages by section. Raises StateError."""
    digest = blake2b(digest_size=16)
    pages: dict[str, list[Any]] = defaultdict(list)
    count, sealed = 0, None
    try:
        for line in lines:
            name, _, text = line.partition("\t")
            if name == "seal":
                sealed = json.loads(text)
                break
            digest.update(line.encode("utf-8", "surrogatepass"))
            count += 1
            pages[name].append(text if name == MODEL else json.loads(text))
    except ValueError as error:
        raise StateError(f"line {count + 1} is no JSON: {error}") from error
    if pages.get("head") != [[KIND, VERSION]]:
        raise StateError(f"it is not a state of version {VERSION}")
    if sealed != [count, digest.hexdigest()]:
        raise StateError("it is not whole, or not what was written")
    return pages
