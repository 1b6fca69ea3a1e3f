"""Real model shapes with random weights, and what a card needs at least for their steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from backend.models.config import LayerConfig, ModelConfig
from backend.models.decoder import Decoder, DecoderWeights, LayerWeights
from backend.models.linear import Linear
from backend.models.rope_config import RopeConfig

BANDWIDTH = 4.3e12
"""Bytes a second that an H200 reaches in practice."""
FLOPS = 790e12
"""Multiply-adds count two: what its bfloat16 matrix products reach in practice."""


def _config(
    family: str, *, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, dim: int
) -> ModelConfig:
    return ModelConfig(
        family=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        norm_eps=1e-5,
        max_position=8192,
        layers=(LayerConfig(),) * layers,
        ropes=(RopeConfig(theta=500_000.0, dim=dim),),
        attention_scale=1 / math.sqrt(dim),
        dtype="bfloat16",
    )


LLAMA_3_8B = _config(
    "llama", vocab=128_256, hidden=4096, inner=14_336, layers=32, heads=32, kv_heads=8, dim=128
)  # fmt: skip
QWEN3_0_6B = replace(
    _config("qwen3", vocab=151_936, hidden=1024, inner=3072, layers=28, heads=16, kv_heads=8, dim=128),
    qk_norm=True,
    tie_embeddings=True,
)
TINY = replace(
    _config("qwen3", vocab=64, hidden=32, inner=48, layers=2, heads=4, kv_heads=2, dim=16),
    qk_norm=True,
    max_position=64,
)


def random_decoder(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Decoder:
    """A decoder with random weights of about the usual size."""
    maker = torch.Generator(device=device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=maker, device=device, dtype=dtype).mul_(shape[-1] ** -0.5)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, device=device, dtype=dtype)

    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    layers = tuple(
        LayerWeights(
            attention_norm=ones(hidden),
            qkv=Linear(random((config.num_heads + 2 * config.num_kv_heads) * dim, hidden)),
            q_norm=ones(dim) if config.qk_norm else None,
            k_norm=ones(dim) if config.qk_norm else None,
            out=Linear(random(hidden, config.num_heads * dim)),
            post_attention_norm=None,
            mlp_norm=ones(hidden),
            gate_up=Linear(random(2 * inner, hidden)),
            down=Linear(random(hidden, inner)),
            post_mlp_norm=None,
        )
        for _ in range(config.num_layers)
    )
    embedding = random(config.vocab_size, hidden)
    head = Linear(embedding if config.tie_embeddings else random(config.vocab_size, hidden))
    return Decoder(config, DecoderWeights(embedding, layers, ones(hidden), head))


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time for a step, from bytes that must be read and products that must be made."""

    config: ModelConfig

    @property
    def _layer_weights(self) -> int:
        c = self.config
        attention = c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
        return c.num_layers * (attention + 3 * c.hidden_size * c.intermediate_size)

    @property
    def _head_weights(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    def decode_s(self, rows: int, context: int) -> float:
        """Seconds for one token of each of `rows` sequences of `context` tokens, in bfloat16."""
        c = self.config
        weights = self._layer_weights + self._head_weights
        kv = 2 * c.num_layers * c.num_kv_heads * c.head_dim
        read = 2 * (weights + rows * context * kv)
        products = 2 * weights * rows + 4 * c.num_layers * c.num_heads * c.head_dim * rows * context
        return max(read / BANDWIDTH, products / FLOPS)

    def prefill_s(self, rows: int, tokens: int) -> float:
        """Seconds for the prompts of `rows` sequences of `tokens` tokens; logits of the last position only."""
        c = self.config
        attention = 2 * c.num_layers * c.num_heads * c.head_dim * tokens * tokens
        products = rows * (2 * self._layer_weights * tokens + 2 * self._head_weights + attention)
        return max(products / FLOPS, 2 * (self._layer_weights + self._head_weights) / BANDWIDTH)
