"""From a path to a model that runs: configuration, weights, tokenizer and every source of end tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from backend.models.build import build_decoder
from backend.models.config import ModelConfig, read_json
from backend.models.decoder import Decoder
from backend.models.errors import ModelError
from backend.models.families import find_family, parse_config
from backend.tokenizer import Tokenizer
from backend.weights.gguf_config import gguf_config
from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer
from backend.weights.locate import is_gguf, locate_model
from backend.weights.sources import GGUFSource, SafetensorsSource, read_gguf_tensor

__all__ = ["LoadedModel", "ModelError", "choose_dtype", "load_model"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    path: Path
    config: ModelConfig
    model: Decoder
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    """Union of what config, generation config and tokenizer call an end."""


def choose_dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """The compute type for "auto", "float32", "bfloat16" or "float16".

    On a GPU "auto" is the checkpoint's own type, bfloat16 if that is float32. On a CPU it is bfloat16 where the
    processor multiplies it natively and the checkpoint is stored so, else float32: without such instructions
    bfloat16 prefill was measured five times slower than float32.

    Raises:
        ModelError: another name.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise ModelError(f"dtype {name!r} is not supported (supported: auto, {', '.join(_DTYPES)})")
        return _DTYPES[name]
    own = _DTYPES.get(config.dtype, torch.float32)
    if device.type == "cuda":
        return torch.bfloat16 if own is torch.float32 else own
    return torch.bfloat16 if own is not torch.float32 and _cpu_multiplies_bfloat16() else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def load_model(
    path: str | Path, *, dtype: torch.dtype | str = "auto", device: torch.device | str = "cpu"
) -> LoadedModel:
    """Load a Hugging Face directory, a .gguf file or "demo".

    Args:
        path: where the model is.
        dtype: compute type, or its name (see choose_dtype).
        device: where the weights go.

    Raises:
        ModelError: one line that names the file, key or tensor that is in the way.
    """
    located = locate_model(path)
    device = torch.device(device)
    loaded = (_load_gguf if is_gguf(located) else _load_directory)(located, dtype, device)
    loaded.model.pack()
    return loaded


def _load_directory(path: Path, dtype: torch.dtype | str, device: torch.device) -> LoadedModel:
    raw = read_json(path / "config.json")
    try:
        config, family = parse_config(raw), find_family(raw)
    except ModelError as error:
        raise ModelError(f"{path}/{error}") from None
    chosen = choose_dtype(dtype, config, device) if isinstance(dtype, str) else dtype
    tokenizer = Tokenizer.from_directory(path)
    generation_file = path / "generation_config.json"
    generation = read_json(generation_file) if generation_file.is_file() else {}
    try:
        model = build_decoder(config, family, SafetensorsSource(path), dtype=chosen, device=device)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    ends = generation.get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return LoadedModel(
        path=path,
        config=config,
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=frozenset(config.eos_token_ids) | frozenset(map(int, ends)) | tokenizer.eos_token_ids,
    )


def _load_gguf(path: Path, dtype: torch.dtype | str, device: torch.device) -> LoadedModel:
    file = GGUFFile(path)
    frequencies = file.tensors.get("rope_freqs.weight")
    divisors = None if frequencies is None else read_gguf_tensor(file, frequencies).float().tolist()
    family, config = gguf_config(file, divisors)
    chosen = choose_dtype(dtype, config, device) if isinstance(dtype, str) else dtype
    tokenizer = gguf_tokenizer(file)
    try:
        model = build_decoder(config, family, GGUFSource(file, family, config), dtype=chosen, device=device)
    except ModelError as error:
        raise ModelError(f"{path.name}: {error}") from None
    return LoadedModel(
        path=path,
        config=config,
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=frozenset(config.eos_token_ids) | tokenizer.eos_token_ids,
    )
