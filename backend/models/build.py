"""From named tensors to a decoder: every expected tensor found, of the right shape, and none left over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from backend.models.config import ModelConfig
from backend.models.decoder import Decoder, DecoderWeights, LayerWeights
from backend.models.errors import ModelError
from backend.models.families import Family
from backend.models.linear import Linear

__all__ = ["TensorSource", "build_decoder"]


class TensorSource(Protocol):
    """Tensors by name, read when asked for."""

    def names(self) -> Iterable[str]:
        """All names there are."""
        ...

    def get(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, in the checkpoint's dtype."""
        ...


def build_decoder(
    config: ModelConfig, family: Family, source: TensorSource, *, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """Read all weights of a model, fusing the projections that share an input.

    Raises:
        ModelError: a tensor is missing, unexpected or of the wrong shape; the message names it.
    """
    reader = _Reader(config, family, source, dtype, device)
    embedding = reader.tensor("embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(reader.layer(index) for index in range(config.num_layers))
    norm = reader.norm("norm.weight", config.hidden_size)
    head = Linear(embedding if config.tie_embeddings else reader.head())
    reader.check_leftovers()
    return Decoder(config, DecoderWeights(embedding, layers, norm, head))


class _Reader:
    def __init__(
        self, config: ModelConfig, family: Family, source: TensorSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._family = family
        self._source = source
        self._names = set(source.names())
        self._used: set[str] = set()
        self._dtype = dtype
        self._device = device
        present = [prefix for prefix in family.prefixes if f"{prefix}embed_tokens.weight" in self._names]
        self._prefix = present[0] if present else family.prefixes[-1]

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor under the model's prefix, in the model's dtype."""
        return self._read(self._prefix + name, shape).to(self._device, self._dtype)

    def head(self) -> torch.Tensor:
        """The output projection of a model that does not tie it to the embedding."""
        names = ("lm_head.weight", self._prefix.removesuffix("model.") + "lm_head.weight")
        name = next((name for name in names if name in self._names), names[0])
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._read(name, shape).to(self._device, self._dtype)

    def norm(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight. One with an offset stays float32: 1 + w would lose its low bits."""
        weight = self._read(self._prefix + name, (size,))
        if self._config.norm_offset:
            return (weight.float() + self._config.norm_offset).to(self._device)
        return weight.to(self._device, self._dtype)

    def linear(self, names: tuple[str, ...], rows: tuple[int, ...], columns: int, bias: bool) -> Linear:
        """Projections of one input, stacked in order."""
        weight = torch.empty((sum(rows), columns), dtype=self._dtype, device=self._device)
        stacked_bias = torch.empty((sum(rows),), dtype=self._dtype, device=self._device) if bias else None
        start = 0
        for name, count in zip(names, rows, strict=True):
            weight[start : start + count] = self._read(f"{self._prefix}{name}.weight", (count, columns))
            if stacked_bias is not None:
                stacked_bias[start : start + count] = self._read(f"{self._prefix}{name}.bias", (count,))
            start += count
        return Linear(weight, stacked_bias)

    def layer(self, index: int) -> LayerWeights:
        """All weights of one layer."""
        config = self._config
        at = f"layers.{index}."
        q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        projections = tuple(f"{at}self_attn.{part}_proj" for part in ("q", "k", "v"))
        gate_up = (f"{at}mlp.gate_proj", f"{at}mlp.up_proj")
        hidden, inner = config.hidden_size, config.intermediate_size
        before_mlp = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
        return LayerWeights(
            attention_norm=self.norm(f"{at}input_layernorm.weight", hidden),
            qkv=self.linear(projections, (q_width, kv_width, kv_width), hidden, config.qkv_bias),
            q_norm=self.norm(f"{at}self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
            k_norm=self.norm(f"{at}self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
            out=self.linear((f"{at}self_attn.o_proj",), (hidden,), q_width, config.o_bias),
            post_attention_norm=self._optional(f"{at}post_attention_layernorm.weight"),
            mlp_norm=self.norm(f"{at}{before_mlp}.weight", hidden),
            gate_up=self.linear(gate_up, (inner, inner), hidden, config.mlp_bias),
            down=self.linear((f"{at}mlp.down_proj",), (hidden,), inner, config.mlp_bias),
            post_mlp_norm=self._optional(f"{at}post_feedforward_layernorm.weight"),
        )

    def _optional(self, name: str) -> torch.Tensor | None:
        return self.norm(name, self._config.hidden_size) if self._config.post_norms else None

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._names:
            raise ModelError(f"tensor {name} is missing from the {self._family.name} checkpoint")
        tensor = self._source.get(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"tensor {name} has shape {tuple(tensor.shape)}, config.json implies {shape}")
        self._used.add(name)
        return tensor

    def check_leftovers(self) -> None:
        """Refuse a checkpoint with weights that the decoder would silently do without."""
        leftovers = {name for name in self._names - self._used if not name.endswith("rotary_emb.inv_freq")}
        leftovers = {name for name in leftovers if not name.startswith(self._family.ignored or ("\0",))}
        if self._config.tie_embeddings:
            leftovers = {name for name in leftovers if not name.endswith("lm_head.weight")}
        if leftovers:
            more = f" (and {len(leftovers) - 1} more)" if len(leftovers) > 1 else ""
            raise ModelError(f"tensor {min(leftovers)} is not part of a {self._family.name} decoder{more}")
