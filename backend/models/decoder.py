"""The decoder: token ids in, hidden states and logits out. Inference only, plain tensors, no autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from backend.attention.base import AttentionStep
from backend.models.config import ModelConfig
from backend.models.linear import Linear
from backend.models.ops import Ops, choose_ops
from backend.models.rope import cos_sin, inverse_frequencies
from backend.native.kernels import Kernels

__all__ = ["Angles", "Decoder", "DecoderWeights", "LayerWeights"]


Angles = list[tuple[torch.Tensor, torch.Tensor]]
"""Cosines and sines of a step's positions, each [T, 1, head_dim / 2], for each kind of rope that the model has."""


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

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops | None = None) -> None:
        """Take the operations from `ops`, or those that fit the weights' device."""
        self.config = config
        self.weights = weights
        self._ops = ops or choose_ops(weights.embedding.device, weights.embedding.dtype)
        device = weights.embedding.device
        self._frequencies = [inverse_frequencies(rope).to(device) for rope in config.ropes]

    def pack(self) -> None:
        """Lay the weights out for the processor (see Linear.pack); does nothing on a GPU."""
        for layer in self.weights.layers:
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                linear.pack()
        self.weights.head.pack()

    @property
    def is_native(self) -> bool:
        """Whether all products and all operations between them are native (see backend/native)."""
        layers = self.weights.layers
        linears = [linear for layer in layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return isinstance(self._ops, Kernels) and all(linear.is_native for linear in (*linears, self.weights.head))

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
        return self.layers(*self.inputs(token_ids, positions), attend, rows)

    def inputs(self, token_ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, Angles]:
        """What the first layer starts from: hidden states [T, hidden], and the angles of the positions."""
        config = self.config
        hidden = embedding(token_ids, self.weights.embedding)
        if config.embedding_scale != 1.0:
            # Rounded to the model's dtype first, as the checkpoints were trained.
            hidden = hidden * torch.tensor(config.embedding_scale, dtype=hidden.dtype).item()
        angles = [
            cos_sin(positions, frequencies, rope.attention_factor, hidden.dtype)
            for frequencies, rope in zip(self._frequencies, config.ropes, strict=True)
        ]
        return hidden, angles

    def layers(
        self, hidden: torch.Tensor, angles: Angles, attend: AttentionStep, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`forward` from where `inputs` ends."""
        config, ops, eps = self.config, self._ops, self.config.norm_eps
        layers = self.weights.layers
        norms = [*(layer.attention_norm for layer in layers[1:]), self.weights.norm]
        normed = ops.norm(hidden, layers[0].attention_norm, eps)
        for index, (layer, following_norm) in enumerate(zip(layers, norms, strict=True)):
            mixed = self._attention(index, normed, angles[config.layers[index].rope], attend)
            if rows is not None and index == config.num_layers - 1:
                mixed, hidden = mixed[rows], hidden[rows]
            mixed = layer.out(mixed)
            if layer.post_attention_norm is not None:
                mixed = ops.norm(mixed, layer.post_attention_norm, eps)
            normed, hidden = ops.add_norm(mixed, hidden, layer.mlp_norm, eps)
            mixed = layer.down(ops.gate(layer.gate_up(normed), config.activation))
            if layer.post_mlp_norm is not None:
                mixed = ops.norm(mixed, layer.post_mlp_norm, eps)
            normed, hidden = ops.add_norm(mixed, hidden, following_norm, eps)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [S, vocab] of hidden states [S, hidden] that `forward` returned."""
        return self.capped(self.weights.head.wide(hidden))

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        """The head's products, kept within the model's limits where it has any."""
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attention(
        self, index: int, normed: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], attend: AttentionStep
    ) -> torch.Tensor:
        config, layer = self.config, self.weights.layers[index]
        rotated = config.num_heads + config.num_kv_heads
        qkv = layer.qkv(normed).view(-1, rotated + config.num_kv_heads, config.head_dim)
        cos, sin = angles
        q, k = self._ops.rotate(
            qkv[:, :rotated], config.num_heads, cos, sin, layer.q_norm, layer.k_norm, config.norm_eps
        )
        return attend(index, q, k, qkv[:, rotated:])
