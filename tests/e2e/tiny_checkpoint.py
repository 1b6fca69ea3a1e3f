"""A Hugging Face directory with random weights that knows every byte and writes tool calls the Hermes way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

__all__ = ["make_tiny_checkpoint"]

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS = 32, 48, 2, 1, 16, 2
TOKENS = 258
VOCAB = 264
"""Larger than the tokenizer, as in models padded to a round size."""

TEMPLATE = """
{%- if tools %}{{ "tools: " ~ (tools | tojson) ~ ", called as <tool_call>...</tool_call>\n" }}{% endif %}
{%- for message in messages %}{{ message.role ~ ": " ~ message.content ~ "\n" }}{% endfor %}
{%- if add_generation_prompt %}{{ "assistant: " }}{% endif %}"""


def make_tiny_checkpoint(path: Path, *, seed: int = 0) -> Path:
    """Write the checkpoint into `path` and return it."""
    path.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
                "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
                "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
                "mlp.gate_proj": (INNER, HIDDEN),
                "mlp.up_proj": (INNER, HIDDEN),
                "mlp.down_proj": (HIDDEN, INNER),
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
            }.items()
        }
    save_file(
        {
            name: np.ones(shape, np.float32) if len(shape) == 1 else chance.normal(0, 0.2, shape).astype(np.float32)
            for name, shape in shapes.items()
        },
        path / "model.safetensors",
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": TOKENS - 2,
        "eos_token_id": TOKENS - 1,
        "torch_dtype": "float32",
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.9, "top_k": 40}))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>", "bos_token": "<begin>"})
    )
    _tokenizer().save(str(path / "tokenizer.json"))
    return path


def _tokenizer() -> Tokenizer:
    """Byte-level, without merges: ids 0 to 255 are the alphabet's characters, then the special tokens."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "<begin>": TOKENS - 2, "<end>": TOKENS - 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<begin>", "<end>"])
    return tokenizer
