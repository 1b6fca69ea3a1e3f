"""Has the interpreter import compiled modules in the place of their source."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from proxy.compiled.store import CompiledUnavailable, build_folder, extension_files

__all__ = ["VARIABLE", "activate", "is_active"]

VARIABLE = "TRIMTAB_COMPILED"
"""`0` runs from source though there is a build; `1` refuses to start without one."""

_SHARED = "__mypyc"
"""What the name of the module ends in that holds the code of all others."""

log = logging.getLogger("trimtab")


class _Finder(MetaPathFinder):
    """Finds the modules of one build, before anybody looks for their source."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where `fullname` is, if it was compiled."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def is_active() -> bool:
    """Whether this process runs compiled modules."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def activate(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> bool:
    """Use the build in `folder`, else the one that fits the running source; return whether one is used.

    To be called before any of its modules is imported. Raises CompiledUnavailable where `TRIMTAB_COMPILED` is `1` and
    there is none, or where it is neither `0` nor `1`.
    """
    wanted = environ.get(VARIABLE, "")
    if wanted not in ("", "0", "1"):
        raise CompiledUnavailable(f"{VARIABLE} is {wanted!r}; it may be 0 (run from source) or 1 (only compiled)")
    if wanted == "0" or is_active():
        return is_active()
    try:
        _use(folder or build_folder())
    except CompiledUnavailable as error:
        if wanted == "1":
            raise
        log.debug("running from source: %s", error)
        return False
    return True


def _use(folder: Path) -> None:
    files = extension_files(folder)
    shared = next((name for name in files if name.endswith(_SHARED)), None)
    if shared is None:
        raise CompiledUnavailable("nothing is compiled of this source; `trimtab compile` compiles it")
    late = sorted(files.keys() & sys.modules.keys())
    if late:
        raise CompiledUnavailable(f"{', '.join(late)} have been imported from source already")
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        # Brings all the code. Where the system's libraries have changed since, it is this that fails.
        importlib.import_module(shared)
    except ImportError as error:
        sys.meta_path.remove(finder)
        log.warning("what is compiled cannot be loaded, running from source: %s", error)
        raise CompiledUnavailable(f"the build cannot be loaded: {error}") from error
