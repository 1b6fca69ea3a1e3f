"""How few tokens a text can possibly have, from its length alone: what cannot fit is refused untokenised.

Every token of a text stands for a stretch of it. Where each byte of the text ends up in some token, and no token
stands for more than L bytes, a text of B bytes has at least B / L tokens. The same holds for some of the bytes: where
no token has more than M of them, a text with N has at least N / M tokens. Vocabularies have a few very long tokens of
spaces and rules, and no very long ones of letters and digits; so both are looked at, and the larger bound is taken.

Whether each byte ends up in a token is read off the tokenizer's own description. One with any part that is not known
here gets no bound.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["TokenBound"]

Part = Mapping[str, Any]

_FORM_SHRINKS: Final = 4
"""How many bytes of UTF-8 at most become one in a normalizer that works by characters. A character has four bytes at
most, so maps of single characters lose no more. Composition does not either: its longest sources are three Hangul
letters (9 bytes) for a syllable of 3, and a mathematical letter with two marks (8 bytes) for a letter of 2.
An ASCII letter or digit stays one, in either case, or becomes the base of a longer character."""
_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
_KEEPS_ALL: Final = frozenset({"ByteLevel", "Digits", "Metaspace"})
_MAY_REMOVE: Final = frozenset({"Split", "Punctuation"})
_LETTERS: Final = frozenset((string.ascii_letters + string.digits).encode())
_NEVER: Final = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
"""Bytes that no UTF-8 has (RFC 3629, section 4): vocabularies may well lack them."""
_NO_LETTERS: Final = bytes(byte for byte in range(256) if byte not in _LETTERS)
_NO_PART_OF_LETTERS: Final = bytes(byte for byte in range(128) if byte not in _LETTERS)


@dataclass(frozen=True, slots=True)
class TokenBound:
    """The bound of one tokenizer."""

    bytes_per_token: int | None
    """No token stands for more known bytes of a text; None where it may stand for any number."""
    letters_per_token: int
    """No token stands for more ASCII letters and digits."""
    unknown: bytes = b""
    """Bytes for which the vocabulary has no token: any number of them may vanish, or share one."""

    @classmethod
    def of(cls, description: Part, alphabet: Mapping[str, int]) -> TokenBound | None:
        """Return the bound of a tokenizer in the format of tokenizer.json, or None where there is none.

        `alphabet` gives the byte for each character of a byte-level vocabulary.
        """
        model = description["model"]
        normalizers = list(_parts(description.get("normalizer"), "normalizers"))
        pre_tokenizers = list(_parts(description.get("pre_tokenizer"), "pretokenizers"))
        byte_level = any(part["type"] == "ByteLevel" for part in (*normalizers, *pre_tokenizers))
        shrinks = [_shrinks(part) for part in normalizers]
        if model["type"] != "BPE" or 0 in shrinks or not all(map(_keeps_all, pre_tokenizers)):
            return None
        names = alphabet if byte_level else {f"<0x{byte:02X}>": byte for byte in range(256)}
        unknown = {byte for name, byte in names.items() if name not in model["vocab"]} - _NEVER
        if not (byte_level or model["byte_fallback"]) or not _LETTERS.isdisjoint(unknown):
            return None
        added = description.get("added_tokens") or []
        texts = [_spelled(token, alphabet if byte_level else {}) for token in model["vocab"]]
        texts += [token["content"].encode() for token in added]
        swallows = any(token["lstrip"] or token["rstrip"] for token in added)
        vanishes = bool(unknown) and any(part["type"] != "ByteLevel" for part in normalizers)  # what became unknown
        return cls(
            None if swallows or vanishes else max(map(len, texts)) * math.prod(shrinks),
            # A letter that became part of a longer character counts as one of its bytes.
            max(len(text.translate(None, _NO_PART_OF_LETTERS)) for text in texts),
            bytes(sorted(unknown)),
        )

    def least_tokens(self, text: str) -> int:
        """Return a number such that `text` has at least so many tokens."""
        raw = text.encode()
        letters = len(raw.translate(None, _NO_LETTERS))
        return max(
            0 if self.bytes_per_token is None else -(-len(raw.translate(None, self.unknown)) // self.bytes_per_token),
            -(-letters // self.letters_per_token),
        )


def _parts(part: Part | None, inner: str) -> Iterator[Part]:
    """Yield a normalizer or a pre-tokenizer, or those that it is a sequence of."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for child in part[inner]:
        yield from _parts(child, inner)


def _keeps_all(pre_tokenizer: Part) -> bool:
    kind = pre_tokenizer["type"]
    return kind in _KEEPS_ALL or (kind in _MAY_REMOVE and pre_tokenizer["behavior"] != "Removed")


def _shrinks(normalizer: Part) -> int:
    """Return how many bytes at most become one; 0 where there is no bound, or where letters may go."""
    kind = normalizer["type"]
    if kind in ("Prepend", "ByteLevel"):
        return 1
    if kind in _FORMS:
        return _FORM_SHRINKS
    if kind == "Replace":
        pattern, content = normalizer["pattern"].get("String", "").encode(), normalizer["content"].encode()
        if pattern and content and pattern.isascii() and _LETTERS.isdisjoint(pattern):
            return -(-len(pattern) // len(content))
    return 0


def _spelled(token: str, alphabet: Mapping[str, int]) -> bytes:
    """Return at least the bytes that a token stands for."""
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()
