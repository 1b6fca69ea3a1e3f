"""Text to token ids and back, and chat messages to text. Imports no torch: the API process uses it too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from backend.chat_template import ChatTemplate
from backend.models.config import read_json
from backend.models.errors import ModelError
from backend.token_bound import TokenBound

__all__ = ["Tokenizer", "byte_alphabet"]

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE (GPT-2) writes for each byte, and the byte it stands for."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


class Tokenizer:
    """A tokenizer with its special tokens and chat template.

    Args:
        backend: the tokenizer proper.
        named_tokens: special tokens by their name in chat templates, such as `bos_token`.
        chat_templates: Jinja sources by name; "default" is used unless tools are given and "tool_use" exists.
        eos_token_ids: ids that end a text, as far as the tokenizer's own files say.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        named_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._named = dict(named_tokens or {})
        self._templates = {name: ChatTemplate(source) for name, source in (chat_templates or {}).items()}
        self._added = dict(backend.get_added_tokens_decoder())
        self.special_ids: frozenset[int] = frozenset(index for index, token in self._added.items() if token.special)
        """Ids that `skip_special_tokens` leaves out."""
        named_eos = backend.token_to_id(self._named["eos_token"]) if self._named.get("eos_token") else None
        self.eos_token_ids: frozenset[int] = frozenset(eos_token_ids) | frozenset(
            () if named_eos is None else (named_eos,)
        )
        description = json.loads(backend.to_str())
        alphabet = byte_alphabet()
        self._alphabet = alphabet if (description["decoder"] or {}).get("type") == "ByteLevel" else None
        self._bound = TokenBound.of(description, alphabet)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and the chat template files of a Hugging Face directory.

        Raises:
            ModelError: there is no tokenizer.json, or a file is not readable.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{path}: tokenizer.json is missing (a tokenizer.model alone is not supported)")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{file}: {error}") from None
        config_file = path / "tokenizer_config.json"
        config = read_json(config_file) if config_file.is_file() else {}
        map_file = path / "special_tokens_map.json"
        merged = (read_json(map_file) if map_file.is_file() else {}) | config
        named = {name: _token_text(merged[name]) for name in _NAMED_TOKENS if merged.get(name)}
        return cls(backend, named_tokens=named, chat_templates=_read_templates(path, config))

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The underlying `tokenizers.Tokenizer`."""
        return self._backend

    @property
    def chat_template(self) -> str | None:
        """Source of the default chat template, if the model has one."""
        template = self._templates.get("default")
        return template.source if template is not None else None

    def use_chat_template(self, source: str) -> None:
        """Render conversations with this Jinja source from now on, whatever the model brought along."""
        self._templates = {"default": ChatTemplate(source)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Rendered chat templates take add_special_tokens=False: they contain their BOS.

        Other threads go on meanwhile.
        """
        # The library's `encode` holds the interpreter's lock to the end, seconds for megabytes. This does not. It is
        # done by the thread that asks, and, without offsets, which nobody needs, in half the time.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def least_tokens(self, text: str) -> int:
        """Return, without tokenising, a number such that `text` has at least so many tokens; 0 where none is sure."""
        return 0 if self._bound is None else self._bound.least_tokens(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; incomplete UTF-8 becomes U+FFFD. Other threads go on meanwhile."""
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, token_id: int) -> str | None:
        """How the vocabulary spells a token; None for an id it does not have."""
        return self._backend.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes a token stands for; None where the vocabulary is not byte-level, so that nobody can say."""
        if self._alphabet is None:
            return None
        cached = self._bytes.get(token_id)
        if cached is None:
            cached = self._bytes[token_id] = self._spell(token_id, self._alphabet)
        return cached

    def _spell(self, token_id: int, alphabet: Mapping[str, int]) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if all(character in alphabet for character in token):
            return bytes(alphabet[character] for character in token)
        return token.encode()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render a conversation; tokenise the result with add_special_tokens=False.

        Raises:
            ModelError: the model has no chat template, or the template refused the messages.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ModelError("this model has no chat template; use /v1/completions")
        scope: dict[str, Any] = {**self._named, "documents": None, **variables}
        scope |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._templates[name].render(scope)


def _token_text(token: Any) -> str:
    """A token is written as a string or as an object with `content`."""
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _read_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name, from wherever a checkpoint keeps them; the newest place wins."""
    found: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        found |= {str(item["name"]): str(item["template"]) for item in value}
    as_json = path / "chat_template.json"
    if as_json.is_file():
        found["default"] = str(read_json(as_json)["chat_template"])
    as_jinja = path / "chat_template.jinja"
    if as_jinja.is_file():
        found["default"] = as_jinja.read_text(encoding="utf-8")
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text(encoding="utf-8")
    return found
