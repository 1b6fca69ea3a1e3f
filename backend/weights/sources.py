"""Named tensors out of safetensors and GGUF files, read one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from backend.models.config import ModelConfig, read_json
from backend.models.errors import ModelError
from backend.models.families import Family
from backend.weights.gguf_config import hf_name
from backend.weights.gguf_file import GGUFFile, TensorInfo

__all__ = ["GGUFSource", "SafetensorsSource", "read_gguf_tensor"]


class SafetensorsSource:
    """The tensors of a Hugging Face directory: the shards its index names, or every .safetensors file in it.

    Raises:
        ModelError: the index names a file that is not there, or a file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._files: dict[Path, Any] = {}
        self._where: dict[str, Path] = {}
        index = path / "model.safetensors.index.json"
        if index.is_file():
            shards = sorted(set(read_json(index).get("weight_map", {}).values()))
            files = [path / shard for shard in shards]
        elif (path / "model.safetensors").is_file():
            files = [path / "model.safetensors"]
        else:
            files = sorted(path.glob("*.safetensors"))
        for file in files:
            if not file.is_file():
                raise ModelError(f"{file}: no such file, but {index.name} names it")
            try:
                self._files[file] = safe_open(str(file), framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file}: {error}") from None
            for name in self._files[file].keys():  # noqa: SIM118  (not a mapping)
                self._where[name] = file

    def names(self) -> Iterable[str]:
        """All names there are."""
        return self._where

    def get(self, name: str) -> torch.Tensor:
        """One tensor, mapped from its file."""
        tensor: torch.Tensor = self._files[self._where[name]].get_tensor(name)
        if not tensor.is_floating_point():
            raise ModelError(f"{self._where[name].name}: tensor {name} has type {tensor.dtype}, not a float")
        return tensor


_F32, _F16, _BF16 = 0, 1, 30
_PLAIN: dict[int, tuple[type[np.generic], torch.dtype]] = {
    _F32: (np.float32, torch.float32),
    _F16: (np.float16, torch.float16),
    _BF16: (np.int16, torch.bfloat16),
}
_QUANTISED = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}


def read_gguf_tensor(file: GGUFFile, info: TensorInfo) -> torch.Tensor:
    """One tensor of a GGUF file, dequantised to float32 where it is quantised.

    Raises:
        ModelError: the element type is not supported; the message names it and the tensor.
    """
    count = int(np.prod(info.shape))
    if info.kind in _PLAIN:
        element, dtype = _PLAIN[info.kind]
        values = _read(file, info, count * np.dtype(element).itemsize).view(element).copy()
        return torch.from_numpy(values).view(dtype).view(info.shape)
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(info.kind)
    except ValueError:
        raise ModelError(f"{file.path.name}: tensor {info.name} has unknown type {info.kind}") from None
    if info.kind not in _QUANTISED:
        known = ", ".join(["F32", "F16", "BF16", *_QUANTISED.values()])
        raise ModelError(f"{file.path.name}: tensor {info.name} is {kind.name}, which is not supported ({known})")
    block, size = gguf.GGML_QUANT_SIZES[kind]
    row_bytes = info.shape[-1] // block * size
    raw = _read(file, info, count // block * size)
    values = gguf.quants.dequantize(raw.reshape(*info.shape[:-1], row_bytes), kind)
    return torch.from_numpy(values)


def _read(file: GGUFFile, info: TensorInfo, size: int) -> npt.NDArray[np.uint8]:
    if info.offset + size > len(file.data):
        raise ModelError(f"{file.path.name}: the file ends inside tensor {info.name}")
    return np.frombuffer(file.data, np.uint8, count=size, offset=info.offset)


class GGUFSource:
    """The tensors of a GGUF file under the names and in the layout of a Hugging Face checkpoint."""

    def __init__(self, file: GGUFFile, family: Family, config: ModelConfig) -> None:
        self._file = file
        self._family = family
        self._config = config
        self._where: dict[str, TensorInfo] = {}
        for name, info in file.tensors.items():
            translated = hf_name(name, post_norms=config.post_norms)
            if translated is not None:
                self._where[translated] = info

    def names(self) -> Iterable[str]:
        """All names there are."""
        return self._where

    def get(self, name: str) -> torch.Tensor:
        """One tensor, dequantised."""
        tensor = read_gguf_tensor(self._file, self._where[name])
        if self._family.gguf_norm_baked and name.endswith("norm.weight"):
            tensor = tensor.float() - self._config.norm_offset
        if self._family.gguf_rotary_interleaved:
            if ".q_proj." in name:
                return _uninterleave(tensor, self._config.num_heads)
            if ".k_proj." in name:
                return _uninterleave(tensor, self._config.num_kv_heads)
        return tensor


def _uninterleave(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (0, d/2, 1, d/2 + 1, ...) of each head back to (0, 1, ..., d - 1)."""
    pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
