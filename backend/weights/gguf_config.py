"""GGUF metadata retold as a config.json, so that one reader per family serves both containers."""

from __future__ import annotations

from typing import Any

from backend.models.config import ModelConfig
from backend.models.errors import ModelError
from backend.models.families import Family, find_gguf_family
from backend.weights.gguf_file import GGUFFile

__all__ = ["gguf_config", "gguf_eos_ids", "hf_name"]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def hf_name(name: str, *, post_norms: bool) -> str | None:
    """The config.json world's name of a GGUF tensor; None for tensors that are not weights."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    if name == "rope_freqs.weight":
        return None
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk":
        kind = parts[2]
        if kind == "ffn_norm":
            module: str | None = "pre_feedforward_layernorm" if post_norms else "post_attention_layernorm"
        else:
            module = _LAYER_NAMES.get(kind)
        if module is not None:
            return f"model.layers.{parts[1]}.{module}.{parts[3]}"
    return name


def gguf_eos_ids(file: GGUFFile) -> tuple[int, ...]:
    """Every token that the metadata calls an end: of sequence, of turn, of message."""
    found = (file.metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS)
    return tuple(dict.fromkeys(int(value) for value in found if value is not None))


def gguf_config(file: GGUFFile, divisors: list[float] | None = None) -> tuple[Family, ModelConfig]:
    """Family and configuration of a GGUF file.

    Args:
        file: the file.
        divisors: contents of `rope_freqs.weight`, where there is one.

    Raises:
        ModelError: an unsupported architecture, or a key is missing.
    """
    arch = str(file.metadata.get("general.architecture"))
    try:
        family = find_gguf_family(arch)
        return family, family.parse(_as_config_json(file, family, arch, divisors))
    except ModelError as error:
        message = str(error).removeprefix("config.json: ")
        raise ModelError(f"{file.path.name}: {message}") from None


def _as_config_json(file: GGUFFile, family: Family, arch: str, divisors: list[float] | None) -> dict[str, Any]:
    meta = file.metadata

    def read(key: str) -> Any:
        return meta.get(f"{arch}.{key}")

    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("tensor token_embd.weight is missing")
    raw: dict[str, Any] = {
        "architectures": [family.architectures[0]],
        "vocab_size": embedding.shape[0],
        "hidden_size": read("embedding_length"),
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": read("attention.head_count"),
        "num_key_value_heads": read("attention.head_count_kv"),
        "head_dim": read("attention.key_length") or read("rope.dimension_count"),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": read("context_length"),
        "rope_theta": read("rope.freq_base"),
        "rope_scaling": _rope_scaling(read, divisors),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(gguf_eos_ids(file)),
        "dtype": "bfloat16",
    }
    raw["sliding_window"] = read("attention.sliding_window")
    return raw | (family.gguf_extra(raw) if family.gguf_extra is not None else {})


def _rope_scaling(read: Any, divisors: list[float] | None) -> dict[str, Any] | None:
    if divisors is not None:
        return {"rope_type": "divisors", "divisors": divisors}
    kind = read("rope.scaling.type")
    if kind in (None, "none"):
        return None
    return {
        "rope_type": kind,
        "factor": read("rope.scaling.factor"),
        "original_max_position_embeddings": read("rope.scaling.original_context_length"),
    }
