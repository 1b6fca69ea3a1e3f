"""A tokenizer rebuilt from GGUF metadata: byte-level BPE and SentencePiece BPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from backend.models.errors import ModelError
from backend.tokenizer import Tokenizer
from backend.weights.gguf_config import gguf_eos_ids
from backend.weights.gguf_file import GGUFFile

__all__ = ["gguf_tokenizer"]

_CONTROL, _USER_DEFINED = 3, 4

# How each family cuts text before BPE; the patterns are part of the models' definitions.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _pre_tokenizer(kind: str, where: Path) -> pre_tokenizers.PreTokenizer:
    if kind in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    pattern = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}.get(kind)
    if pattern is None:
        raise ModelError(
            f"{where.name}: tokenizer.ggml.pre {kind!r} is not supported "
            "(supported: default, gpt-2, smollm, llama-bpe, qwen2)"
        )
    split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_level(file: GGUFFile, tokens: list[str]) -> Backend:
    meta = file.metadata
    kind = str(meta.get("tokenizer.ggml.pre", "default"))
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=kind in ("llama-bpe", "llama3")))
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(kind, file.path)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(file: GGUFFile, tokens: list[str]) -> Backend:
    """SentencePiece BPE: its merges are the pairs whose union is a token, best score first."""
    meta = file.metadata
    scores: list[float] = meta["tokenizer.ggml.scores"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[index], vocabulary[left], vocabulary[right], (left, right)))
    merges.sort()
    unknown = meta.get("tokenizer.ggml.unknown_token_id")
    backend = Backend(
        models.BPE(
            vocab=vocabulary,
            merges=[pair for *_, pair in merges],
            unk_token=tokens[unknown] if unknown is not None else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    undo: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if meta.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(undo)
    return backend


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        ModelError: the kind of tokenizer or pre-tokenizer is not supported, or its tables are missing.
    """
    meta = file.metadata
    kind = meta.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in builders:
        raise ModelError(f"{file.path.name}: tokenizer.ggml.model {kind!r} is not supported (supported: gpt2, llama)")
    try:
        tokens: list[str] = meta["tokenizer.ggml.tokens"]
        backend = builders[kind](file, tokens)
    except KeyError as error:
        raise ModelError(f"{file.path.name}: {error.args[0]} is missing") from None
    kinds: list[int] = meta.get("tokenizer.ggml.token_type", [])
    backend.add_tokens(
        [
            AddedToken(token, special=token_kind == _CONTROL, normalized=False)
            for token, token_kind in zip(tokens, kinds, strict=False)
            if token_kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    _add_bos(backend, meta, tokens, default=kind == "llama" or meta.get("tokenizer.ggml.pre") == "llama-bpe")
    named = {
        name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in {
            "bos_token": "bos",
            "eos_token": "eos",
            "unk_token": "unknown",
            "pad_token": "padding",
        }.items()
        if meta.get(f"tokenizer.ggml.{key}_token_id") is not None
    }
    template = meta.get("tokenizer.chat_template")
    templates = {"default": str(template)} if template else {}
    return Tokenizer(backend, named_tokens=named, chat_templates=templates, eos_token_ids=gguf_eos_ids(file))


def _add_bos(backend: Backend, meta: dict[str, Any], tokens: list[str], *, default: bool) -> None:
    """Begin plain texts with BOS where the model was trained so."""
    bos = meta.get("tokenizer.ggml.bos_token_id")
    if bos is None or not meta.get("tokenizer.ggml.add_bos_token", default):
        return
    token = tokens[bos]
    backend.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, bos)]
    )
