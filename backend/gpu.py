"""What the driver says about the GPU that the engine runs on, read through NVML where that is installed.

NVML comes with NVIDIA's driver, as a shared library; nothing needs to be installed for this, and without the library
or without a GPU there is just nothing to read.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

__all__ = ["Gpu", "Reading"]

logger = logging.getLogger(__name__)

_LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0
_DIE: Final = 0
"""NVML_TEMPERATURE_GPU: the sensor on the chip itself."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Reading(NamedTuple):
    """What NVML said. None where this GPU, or this slice of one, does not tell."""

    utilization: float | None
    """Share of the last sampling period (up to a second) in which a kernel ran, 0 to 1."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None


class Gpu:
    """One GPU, found by its UUID, so that neither CUDA_VISIBLE_DEVICES nor the order of cards matters."""

    def __init__(self, nvml: Any, handle: ctypes.c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def find(cls, uuid: str, load: Callable[[str], Any] = ctypes.CDLL) -> Gpu | None:
        """Return the GPU called `uuid` (without its prefix); None where there is none, or NVML does not know it."""
        if not uuid:
            return None
        try:
            nvml = load(_LIBRARY)
        except OSError as error:
            logger.warning("no metrics of the GPU: %s", error)
            return None
        code = nvml.nvmlInit_v2()
        if code != _SUCCESS:
            logger.warning("no metrics of the GPU: NVML does not start (code %d)", code)
            return None
        handle = ctypes.c_void_p()
        for prefix in ("GPU-", "MIG-"):
            if nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}".encode(), ctypes.byref(handle)) == _SUCCESS:
                return cls(nvml, handle)
        logger.warning("no metrics of the GPU: NVML knows none with the UUID %s", uuid)
        return None

    def read(self) -> Reading:
        """Ask the driver; takes some tens of microseconds."""
        nvml, handle = self._nvml, self._handle
        busy, memory = _Utilization(), _Memory()
        milliwatts, celsius = ctypes.c_uint(), ctypes.c_uint()
        busy_known = nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)) == _SUCCESS
        memory_known = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS
        power_known = nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == _SUCCESS
        heat_known = nvml.nvmlDeviceGetTemperature(handle, _DIE, ctypes.byref(celsius)) == _SUCCESS
        return Reading(
            busy.gpu / 100.0 if busy_known else None,
            memory.used if memory_known else None,
            memory.total if memory_known else None,
            milliwatts.value / 1000.0 if power_known else None,
            float(celsius.value) if heat_known else None,
        )
