"""Where state is kept when nobody said where."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from proxy.config.model import Config
from proxy.store import Store, StoreError

__all__ = ["default_path", "kept_somewhere"]

_LOG = logging.getLogger("trimtab")


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
    """Return `config` with a file for its state, unless it names one or wants none.

    A default that cannot be written to, as in a container with a read-only root, is a warning and no more.
    """
    state = config.state
    if not state.enabled or state.path is not None:
        return config
    path = default_path(config, environ, prefix)
    if path is None:
        return config
    try:
        Store(path)
    except StoreError as error:
        _LOG.warning("nothing will survive a restart (state.enabled: false silences this): %s", error)
        return config
    return config.model_copy(update={"state": state.model_copy(update={"path": str(path)})})
