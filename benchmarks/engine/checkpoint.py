"""The demo model as a Hugging Face directory, for peers that do not read GGUF; written once, into the cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from backend.models.config import ModelConfig
from backend.weights.gguf_config import gguf_config
from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer
from backend.weights.locate import DEMO, locate_model
from backend.weights.sources import GGUFSource
from benchmarks.proxy.processes import CACHE

__all__ = ["demo_directory"]


def demo_directory(dtype: str = "float32") -> Path:
    """Return the directory, written by the project's own GGUF reader if it is not there yet."""
    path = CACHE / "models" / f"{DEMO}-{dtype}"
    if path.is_dir():
        return path
    scratch = path.with_name(f"{path.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    file = GGUFFile(locate_model(DEMO))
    family, config = gguf_config(file)
    source = GGUFSource(file, family, config)
    kind = getattr(torch, dtype)
    tensors = {name: source.get(name).to(kind).contiguous() for name in source.names()}
    save_file(tensors, str(scratch / "model.safetensors"), metadata={"format": "pt"})
    (scratch / "config.json").write_text(json.dumps(_config(config, dtype), indent=2))
    gguf_tokenizer(file).backend.save(str(scratch / "tokenizer.json"))
    (scratch / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    scratch.rename(path)
    return path


def _config(config: ModelConfig, dtype: str) -> dict[str, object]:
    """What config.json of a Llama says."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.ropes[0].theta,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_ids[0],
        "eos_token_id": config.eos_token_ids[0],
        "torch_dtype": dtype,
    }
