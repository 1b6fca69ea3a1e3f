"""The model families, one record each: to add one, add a reader and a line to FAMILIES.

A reader turns config.json into a ModelConfig. Defaults are those of the family's reference implementation,
because published config files leave out what equals them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.models.config import Activation, LayerConfig, ModelConfig
from backend.models.errors import ModelError
from backend.models.rope_config import RopeConfig, parse_rope

__all__ = ["FAMILIES", "Family", "find_family", "find_gguf_family", "parse_config"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class Family:
    """How one family's checkpoints are recognised and read."""

    name: str
    architectures: tuple[str, ...]
    """Values of `architectures` in config.json that mean this family."""
    parse: Callable[[Mapping[str, Any]], ModelConfig]
    gguf_arch: str | None = None
    """Value of `general.architecture` in a GGUF file."""
    gguf_rotary_interleaved: bool = False
    """GGUF stores attn_q and attn_k with each head's rotary pairs side by side; undone while loading."""
    gguf_norm_baked: bool = False
    """GGUF stores norm weights with `norm_offset` already added."""
    gguf_extra: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """Keys of config.json that GGUF metadata leaves out because its readers know them by architecture."""
    prefixes: tuple[str, ...] = ("model.",)
    """What precedes `embed_tokens`, `layers` and `norm` in tensor names; the first that matches is used."""
    ignored: tuple[str, ...] = ()
    """Prefixes of tensors that belong to parts not served, such as a vision tower."""


def _ids(value: Any) -> tuple[int, ...]:
    """A token id that may be absent, one number or a list of them."""
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)


def _need(raw: Mapping[str, Any], key: str, default: Any = None) -> Any:
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"config.json: {key} is missing")
    return value


def _activation(raw: Mapping[str, Any], default: str) -> Activation:
    name = raw.get("hidden_activation") or raw.get("hidden_act") or default
    if name not in _ACTIVATIONS:
        raise ModelError(f"config.json: activation {name!r} is not supported (supported: {', '.join(_ACTIVATIONS)})")
    return _ACTIVATIONS[name]


def _rope(raw: Mapping[str, Any], *, dim: int, max_position: int) -> RopeConfig:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(raw.get("rope_theta") or 10_000.0)
    return parse_rope(scaling, theta=theta, dim=dim, max_position=max_position)


def _common(
    raw: Mapping[str, Any],
    family: str,
    *,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    max_position: int,
) -> ModelConfig:
    """What every family shares: sizes, one rope, full attention, SwiGLU."""
    heads = int(_need(raw, "num_attention_heads"))
    hidden = int(_need(raw, "hidden_size"))
    dim = int(raw.get("head_dim") or head_dim or hidden // heads)
    max_position = int(raw.get("max_position_embeddings") or max_position)
    return ModelConfig(
        family=family,
        vocab_size=int(_need(raw, "vocab_size")),
        hidden_size=hidden,
        intermediate_size=int(_need(raw, "intermediate_size")),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or kv_heads or heads),
        head_dim=dim,
        norm_eps=float(raw.get("rms_norm_eps") or 1e-6),
        max_position=max_position,
        layers=(LayerConfig(),) * int(_need(raw, "num_hidden_layers")),
        ropes=(_rope(raw, dim=dim, max_position=max_position),),
        attention_scale=1.0 / math.sqrt(dim),
        activation=_activation(raw, "silu"),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        bos_token_ids=_ids(raw.get("bos_token_id")),
        eos_token_ids=_ids(raw.get("eos_token_id")),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
    )


def _llama(raw: Mapping[str, Any]) -> ModelConfig:
    bias = bool(raw.get("attention_bias", False))
    config = _common(raw, "llama", max_position=2048)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bool(raw.get("mlp_bias", False)))


def _mistral(raw: Mapping[str, Any]) -> ModelConfig:
    config = _common(raw, "mistral", kv_heads=8, max_position=131_072)
    window = raw.get("sliding_window", 4096)
    return replace(config, layers=tuple(replace(layer, window=window) for layer in config.layers))


def _qwen_windows(raw: Mapping[str, Any], config: ModelConfig) -> ModelConfig:
    """Qwen's optional sliding window: the layers from max_window_layers on."""
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    if window is None:
        return config
    first = int(raw.get("max_window_layers", 28))
    local = _local_layers(raw, config.num_layers) or [index >= first for index in range(config.num_layers)]
    return replace(config, layers=tuple(LayerConfig(window=window if is_local else None) for is_local in local))


def _local_layers(raw: Mapping[str, Any], count: int) -> list[bool] | None:
    """Which layers slide, where the config lists them."""
    kinds = raw.get("layer_types")
    if not kinds:
        return None
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(f"config.json: layer type {sorted(unknown)[0]!r} is not supported")
    if len(kinds) != count:
        raise ModelError(f"config.json: layer_types has {len(kinds)} entries for {count} layers")
    return [kind == "sliding_attention" for kind in kinds]


def _qwen2(raw: Mapping[str, Any]) -> ModelConfig:
    config = _common(raw, "qwen2", kv_heads=32, max_position=32_768)
    return _qwen_windows(raw, replace(config, qkv_bias=True))


def _qwen3(raw: Mapping[str, Any]) -> ModelConfig:
    config = _common(raw, "qwen3", head_dim=128, kv_heads=32, max_position=32_768)
    bias = bool(raw.get("attention_bias", False))
    return _qwen_windows(raw, replace(config, qk_norm=True, qkv_bias=bias, o_bias=bias))


_GEMMA3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


def _gemma3(raw: Mapping[str, Any]) -> ModelConfig:
    text = dict(raw.get("text_config") or raw)
    for key in ("eos_token_id", "bos_token_id", "dtype", "torch_dtype"):
        text.setdefault(key, raw.get(key))
    text = _GEMMA3_DEFAULTS | {key: value for key, value in text.items() if value is not None}
    if text.get("attn_logit_softcapping"):
        raise ModelError("config.json: attn_logit_softcapping is not supported")
    if text.get("use_bidirectional_attention"):
        raise ModelError("config.json: use_bidirectional_attention is not supported")
    nested = text.get("rope_parameters") or {}
    legacy = {"rope_theta": text.get("rope_theta", 1_000_000.0)} | (text.get("rope_scaling") or {})
    global_rope = nested.get("full_attention") or legacy
    local_rope = nested.get("sliding_attention") or {"rope_theta": text.get("rope_local_base_freq", 10_000.0)}
    config = _common(text | {"rope_parameters": global_rope, "rope_scaling": None}, "gemma3", max_position=131_072)
    period = int(text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or 6)
    local = _local_layers(text, config.num_layers) or [bool((i + 1) % period) for i in range(config.num_layers)]
    window = int(text.get("sliding_window", 4096))
    bias = bool(text.get("attention_bias", False))
    return replace(
        config,
        layers=tuple(LayerConfig(window=window, rope=1) if is_local else LayerConfig() for is_local in local),
        ropes=(
            config.ropes[0],
            parse_rope(local_rope, theta=10_000.0, dim=config.head_dim, max_position=config.max_position),
        ),
        attention_scale=float(text.get("query_pre_attn_scalar") or 256) ** -0.5,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        norm_offset=1.0,
        post_norms=True,
        embedding_scale=math.sqrt(config.hidden_size),
        logit_softcap=text.get("final_logit_softcapping"),
    )


def _gemma3_gguf(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Gemma 3 27B scales queries by hidden / heads, the smaller ones by the head dimension."""
    largest = raw["num_hidden_layers"] == 62
    scalar = raw["hidden_size"] // raw["num_attention_heads"] if largest else raw["head_dim"]
    return {"query_pre_attn_scalar": scalar}


FAMILIES: tuple[Family, ...] = (
    Family("llama", ("LlamaForCausalLM",), _llama, gguf_arch="llama", gguf_rotary_interleaved=True),
    Family("mistral", ("MistralForCausalLM",), _mistral),
    Family("qwen2", ("Qwen2ForCausalLM",), _qwen2, gguf_arch="qwen2"),
    Family("qwen3", ("Qwen3ForCausalLM",), _qwen3, gguf_arch="qwen3"),
    Family(
        "gemma3",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        _gemma3,
        gguf_arch="gemma3",
        gguf_norm_baked=True,
        gguf_extra=_gemma3_gguf,
        prefixes=("model.language_model.", "language_model.model.", "model."),
        ignored=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
    ),
)


def find_family(raw: Mapping[str, Any]) -> Family:
    """The family of a config.json.

    Raises:
        ModelError: none of its architectures is known.
    """
    names = raw.get("architectures") or []
    for family in FAMILIES:
        if set(names) & set(family.architectures):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    what = ", ".join(map(str, names)) or f"none (model_type {raw.get('model_type')!r})"
    raise ModelError(f"config.json: architecture {what} is not supported (supported: {known})")


def find_gguf_family(arch: str) -> Family:
    """The family of a GGUF file's `general.architecture`.

    Raises:
        ModelError: the architecture is unknown.
    """
    for family in FAMILIES:
        if family.gguf_arch == arch:
            return family
    known = ", ".join(family.gguf_arch for family in FAMILIES if family.gguf_arch)
    raise ModelError(f"general.architecture {arch!r} is not supported (supported: {known})")


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn the contents of a config.json into a ModelConfig.

    Raises:
        ModelError: an unsupported architecture, quantisation, activation or rope type, or a missing key.
    """
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"config.json: quantisation {method!r} is not supported; use the unquantised checkpoint or a GGUF"
        )
    family = find_family(raw)
    config = family.parse(raw)
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {config.num_heads} is not a multiple of "
            f"num_key_value_heads {config.num_kv_heads}"
        )
    return config
