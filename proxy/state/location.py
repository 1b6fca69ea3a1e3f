"""Where state is kept when nobody said where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proxy.config.model import Config

__all__ = ["default_path", "kept_somewhere"]


def default_path(config: Config, environ: Mapping[str, str], prefix: str = "") -> Path | None:
    """Return the file for a proxy on this port; None where the system picks the port, or nobody has a home.

    systemd names the folder in STATE_DIRECTORY; else it is the XDG base directory for state.
    """
    if config.listen.port == 0:
        return None
    folders = environ.get("STATE_DIRECTORY", "").split(":")
    if folders[0]:
        folder = Path(folders[0])
    elif environ.get("XDG_STATE_HOME"):
        folder = Path(environ["XDG_STATE_HOME"]) / "trimtab"
    elif environ.get("HOME"):
        folder = Path(environ["HOME"]) / ".local" / "state" / "trimtab"
    else:
        return None
    return folder / f"{prefix}{config.listen.port}.db" if folder.is_absolute() else None


def kept_somewhere(config: Config, environ: Mapping[str, str], prefix: str = "") -> Config:
    """Return `config` with a file for its state, unless it names one, wants none, or there is no place for one."""
    state = config.state
    if not state.enabled or state.path is not None:
        return config
    path = default_path(config, environ, prefix)
    return (
        config if path is None else config.model_copy(update={"state": state.model_copy(update={"path": str(path)})})
    )
