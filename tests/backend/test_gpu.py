"""The driver's numbers are read where there is a driver, and nothing is invented where there is none."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import pytest

from backend.api.metrics import Metrics
from backend.gpu import Gpu, Reading

UUID = "3f1c5b52-6c3a-0d5e-a1b2-000000000001"
NOT_SUPPORTED = 3


class Nvml:
    """The calls of NVML that we make: as in C, codes are returned and values written through pointers."""

    def __init__(self, known: str = f"GPU-{UUID}", init: int = 0, mute: tuple[str, ...] = ()) -> None:
        self.known, self.init, self.mute = known, init, mute

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.init

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        if uuid.decode() != self.known:
            return 6
        handle._obj.value = 7
        return 0

    def _fill(self, name: str, handle: Any, fill: Callable[[], None]) -> int:
        assert handle.value == 7
        if name in self.mute:
            return NOT_SUPPORTED
        fill()
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, found: Any) -> int:  # noqa: N802
        return self._fill("utilization", handle, lambda: setattr(found._obj, "gpu", 87))

    def nvmlDeviceGetMemoryInfo(self, handle: Any, found: Any) -> int:  # noqa: N802
        def fill() -> None:
            found._obj.used, found._obj.total = 60 << 30, 141 << 30

        return self._fill("memory", handle, fill)

    def nvmlDeviceGetPowerUsage(self, handle: Any, found: Any) -> int:  # noqa: N802
        return self._fill("power", handle, lambda: setattr(found._obj, "value", 412_500))

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, found: Any) -> int:  # noqa: N802
        assert sensor == 0
        return self._fill("heat", handle, lambda: setattr(found._obj, "value", 61))


def test_everything_the_driver_tells_is_read() -> None:
    gpu = Gpu.find(UUID, lambda name: Nvml())
    assert gpu is not None
    assert gpu.read() == Reading(0.87, 60 << 30, 141 << 30, 412.5, 61.0)


def test_a_slice_of_a_gpu_is_found_and_what_it_does_not_tell_is_left_out() -> None:
    gpu = Gpu.find(UUID, lambda name: Nvml(f"MIG-{UUID}", mute=("utilization", "power")))
    assert gpu is not None
    assert gpu.read() == Reading(None, 60 << 30, 141 << 30, None, 61.0)
    text = Metrics("m", block_size=16, num_blocks=4, gpu=gpu).render(None).decode()
    assert 'trimtab_worker_gpu_memory_used_bytes{engine="0",model_name="m"} 6.442450944e+10' in text
    assert "gpu_utilization" not in text
    assert "gpu_power" not in text


def test_utilization_is_exposed_as_a_share() -> None:
    gpu = Gpu.find(UUID, lambda name: Nvml())
    text = Metrics("m", block_size=16, num_blocks=4, gpu=gpu).render(None).decode()
    assert 'trimtab_worker_gpu_utilization_ratio{engine="0",model_name="m"} 0.87' in text


def test_an_engine_on_a_cpu_loads_nothing() -> None:
    def load(name: str) -> Any:
        raise AssertionError(name)

    assert Gpu.find("", load) is None
    assert "trimtab_worker_gpu" not in Metrics("m", block_size=16, num_blocks=4).render(None).decode()


def absent(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (absent, "libnvidia-ml.so.1: cannot open"),
        (lambda name: Nvml(init=9), "NVML does not start (code 9)"),
        (lambda name: Nvml("GPU-another"), f"NVML knows none with the UUID {UUID}"),
    ],
)
def test_what_is_missing_is_said_once_and_harms_nobody(
    load: Callable[[str], Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "backend.gpu"):
        assert Gpu.find(UUID, load) is None
    (record,) = caplog.records
    assert why in record.getMessage()


def test_the_structures_have_the_sizes_of_the_c_interface() -> None:
    from backend.gpu import _Memory, _Utilization

    assert (ctypes.sizeof(_Utilization), ctypes.sizeof(_Memory)) == (8, 24)
