"""A `trimtab serve` of a benchmark's own, as a process on ports that the system picks."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

__all__ = ["Served", "serving"]

_START_S = 60.0
_LOOK_S = 0.1


class Served(NamedTuple):
    """What runs, and where it answers."""

    process: asyncio.subprocess.Process
    proxy: str
    admin: str

    @property
    def port(self) -> int:
        """The data plane's port."""
        return int(self.proxy.rpartition(":")[2])


@asynccontextmanager
async def serving(config: dict[str, Any], folder: Path, *arguments: str) -> AsyncIterator[Served]:
    """Write `config` to `trimtab.yaml` in `folder` and serve it. Raises RuntimeError when it does not start."""
    file, log = folder / "trimtab.yaml", folder / "stderr.txt"
    file.write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", "serve", "--port", "0", "--admin-port", "0", "-c", str(file), *arguments,
        stderr=log.open("wb"),
    )  # fmt: skip
    try:
        yield Served(process, *await _announced(process, log))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _announced(process: asyncio.subprocess.Process, log: Path) -> tuple[str, str]:
    """Wait until it serves; return the URLs of both its ports. Raises RuntimeError when it does not."""
    for _ in range(int(_START_S / _LOOK_S)):
        said = dict(re.findall(r"^(proxy|admin) +(http://[^ ]+)", log.read_text(), re.MULTILINE))
        if len(said) == 2:
            return said["proxy"], said["admin"]
        if process.returncode is not None:
            break
        await asyncio.sleep(_LOOK_S)
    raise RuntimeError(f"trimtab serve did not start: {log.read_text()}")
