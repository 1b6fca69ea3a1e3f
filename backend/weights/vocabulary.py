"""A model's tokenizer and configuration without its weights, for processes that never run it. No torch."""

from __future__ import annotations

from pathlib import Path

from backend.models.config import ModelConfig, parse_config, read_json
from backend.tokenizer import Tokenizer
from backend.weights.gguf_config import gguf_config
from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer
from backend.weights.locate import is_gguf, locate_model

__all__ = ["load_tokenizer", "read_model_config"]


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory, a .gguf file or "demo".

    Raises:
        ModelError: there is no such model, or its tokenizer is not supported.
    """
    path = locate_model(model)
    return gguf_tokenizer(GGUFFile(path)) if is_gguf(path) else Tokenizer.from_directory(path)


def read_model_config(model: str | Path) -> ModelConfig:
    """The configuration of a model, for its context length and ids.

    Raises:
        ModelError: there is no such model, or it is not supported.
    """
    path = locate_model(model)
    return gguf_config(GGUFFile(path))[1] if is_gguf(path) else parse_config(read_json(path / "config.json"))
