"""What the API process needs of a model: tokenizer, template, sampling defaults. The weights stay with the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from backend.api.errors import InvalidRequest
from backend.api.sampling import SAMPLING, SAMPLING_DEFAULTS
from backend.api.service import Pooling, ServedModel
from backend.api.tools import tool_format_of
from backend.engine.options import EngineInfo
from backend.models.config import read_json
from backend.tokenizer import Tokenizer
from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer
from backend.weights.locate import is_gguf

__all__ = ["load_served_model", "load_tokenizer", "sampling_defaults"]

logger = logging.getLogger("trimtab.worker")

_GENERATION_CONFIG: Final = "generation_config.json"


def load_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face directory or of a GGUF file.

    Raises:
        ModelError: it is missing or of an unsupported kind.
    """
    return gguf_tokenizer(GGUFFile(path)) if is_gguf(path) else Tokenizer.from_directory(path)


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling parameters that a model's authors recommend in its generation_config.

    `do_sample: false` means greedy there, but it is also what a file that never thought about sampling says, so it
    is read as "no recommendation". Values that a request could not ask for are left out, with a warning.
    """
    if not generation_config.get("do_sample"):
        return {}
    found: dict[str, float] = {}
    for field in SAMPLING:
        if field.name in SAMPLING_DEFAULTS and generation_config.get(field.name) is not None:
            try:
                found[field.name] = float(field.read(generation_config))
            except InvalidRequest as error:
                logger.warning("%s: %s It is not used.", _GENERATION_CONFIG, error.message)
    return found


def load_served_model(
    path: Path, info: EngineInfo, *, names: tuple[str, ...], pooling: Pooling, chat_template: str | None = None
) -> ServedModel:
    """Describe the model that the engine at `info` has loaded from `path`. A `chat_template` replaces its own.

    Raises:
        ModelError: the tokenizer cannot be read.
    """
    file = path / _GENERATION_CONFIG
    generation_config = read_json(file) if file.is_file() else {}
    tokenizer = load_tokenizer(path)
    if chat_template is not None:
        tokenizer.use_chat_template(chat_template)
    return ServedModel(
        names=names,
        tokenizer=tokenizer,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        created=int(time.time()),
        sampling_defaults=sampling_defaults(generation_config),
        tool_format=tool_format_of(tokenizer.chat_template),
        pooling=pooling,
    )
