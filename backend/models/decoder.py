"""The decoder: token ids in, hidden states and logits out. Inference only, plain tensors, no autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, gelu, rms_norm, silu

from backend.attention.base import AttentionStep
from backend.models.config import ModelConfig
from backend.models.linear import Linear
from backend.models.rope import cos_sin, inverse_frequencies, rotate

__all__ = ["Decoder", "DecoderWeights", "LayerWeights"]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights. Norm weights are vectors; absent ones are None."""

    attention_norm: torch.Tensor
    qkv: Linear
    """Query, key and value projections stacked: [(heads + 2 kv_heads) * head_dim, hidden]"""
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    post_attention_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    """Gate and up projections stacked: [2 * intermediate, hidden]"""
    down: Linear
    post_mlp_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a model."""

    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Linear
    """[vocab, hidden]; shares the embedding's memory where they are tied."""


class Decoder:
    """A Llama-family decoder over an attention step that owns the cache."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.weights = weights
        device = weights.embedding.device
        self._frequencies = [inverse_frequencies(rope).to(device) for rope in config.ropes]

    def pack(self) -> None:
        """Lay the weights out for the processor (see Linear.pack); does nothing on a GPU."""
        for layer in self.weights.layers:
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                linear.pack()
        self.weights.head.pack()

    @property
    def dtype(self) -> torch.dtype:
        """Type of the hidden states."""
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.weights.embedding.device

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: AttentionStep,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run all layers and the last norm.

        Args:
            token_ids: [T] tokens of all sequences of the step, one after another.
            positions: [T] position of each in its sequence.
            attend: stores K and V and attends, once per layer.
            rows: [S] tokens whose hidden states are wanted; the last layer computes nothing else. None for all.

        Returns:
            [S, hidden] or [T, hidden]
        """
        config = self.config
        hidden = embedding(token_ids, self.weights.embedding)
        if config.embedding_scale != 1.0:
            # Rounded to the model's dtype first, as the checkpoints were trained.
            hidden = hidden * torch.tensor(config.embedding_scale, dtype=hidden.dtype, device=hidden.device)
        angles = [
            cos_sin(positions, frequencies, rope.attention_factor, hidden.dtype)
            for frequencies, rope in zip(self._frequencies, config.ropes, strict=True)
        ]
        last = config.num_layers - 1
        for index, layer in enumerate(self.weights.layers):
            cos, sin = angles[config.layers[index].rope]
            normed = self._norm(hidden, layer.attention_norm)
            mixed = self._attention(index, layer, normed, cos, sin, attend)
            if index == last and rows is not None:
                mixed, hidden = mixed[rows], hidden[rows]
            mixed = layer.out(mixed)
            if layer.post_attention_norm is not None:
                mixed = self._norm(mixed, layer.post_attention_norm)
            hidden = hidden + mixed
            mixed = self._mlp(layer, self._norm(hidden, layer.mlp_norm))
            if layer.post_mlp_norm is not None:
                mixed = self._norm(mixed, layer.post_mlp_norm)
            hidden = hidden + mixed
        return self._norm(hidden, self.weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [S, vocab] of hidden states [S, hidden] that `forward` returned."""
        logits = self.weights.head(hidden).float()
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attend: AttentionStep,
    ) -> torch.Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = layer.qkv(normed).view(-1, heads + 2 * kv_heads, config.head_dim)
        v = qkv[:, heads + kv_heads :]
        if layer.q_norm is None or layer.k_norm is None:
            rotated = rotate(qkv[:, : heads + kv_heads], cos, sin)
            return attend(index, rotated[:, :heads], rotated[:, heads:], v)
        q = self._norm(qkv[:, :heads], layer.q_norm)
        k = self._norm(qkv[:, heads : heads + kv_heads], layer.k_norm)
        return attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        gate = silu(gate) if self.config.activation == "silu" else gelu(gate, approximate="tanh")
        return layer.down(gate.mul_(up))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Root-mean-square norm (Zhang and Sennrich 2019), computed in the wider of the two types."""
        if weight.dtype == x.dtype:
            return rms_norm(x, weight.shape, weight, self.config.norm_eps)
        return rms_norm(x.to(weight.dtype), weight.shape, weight, self.config.norm_eps).to(x.dtype)
