"""What a decoder needs to know about a checkpoint, read once from its config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from backend.models.errors import ModelError
from backend.models.rope_config import RopeConfig

__all__ = ["Activation", "LayerConfig", "ModelConfig", "read_json"]

Activation = Literal["silu", "gelu_tanh"]
"""What gates a feed-forward layer."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What differs between the layers of one model."""

    window: int | None = None
    """A query sees this many tokens, itself included; None for all."""
    rope: int = 0
    """Index into `ModelConfig.ropes`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-family decoder, described by what it does rather than by its name."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...]
    attention_scale: float
    activation: Literal["silu", "gelu_tanh"] = "silu"
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before the rotation (Qwen3, Gemma 3)."""
    norm_offset: float = 0.0
    """Added to every norm weight: 1 where the checkpoint stores weight - 1 (Gemma)."""
    post_norms: bool = False
    """Norms also after attention and after the MLP (Gemma)."""
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    bos_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """The checkpoint's own dtype, as torch spells it."""

    @property
    def num_layers(self) -> int:
        """How many decoder layers there are."""
        return len(self.layers)

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct sliding windows of the layers, in order of first use."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: the file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
