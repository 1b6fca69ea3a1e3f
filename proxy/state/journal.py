"""The file that controllers write down what they were told in, for `trimtab simulate --replay FILE`."""

from __future__ import annotations

import logging
from pathlib import Path

from proxy.config.model import LogConfig

__all__ = ["JournalFile"]

_LOG = logging.getLogger("trimtab")
_BUFFER = 1 << 18


class JournalFile:
    """Appends lines until the file is as large as it may get, or the disk says no; serving goes on either way.

    A tool for looking into a decision, not a log to keep: a call costs tens of microseconds while it is on.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open the file. Raises OSError where it cannot be written."""
        self._file = path.open("a", encoding="utf-8", buffering=_BUFFER)
        self._path = path
        self._left = max_bytes - self._file.tell()
        self._open = True

    @classmethod
    def of(cls, config: LogConfig) -> JournalFile | None:
        """Return the one that is configured; None for none, and where it cannot be written, which is logged."""
        if config.journal is None:
            return None
        try:
            return cls(Path(config.journal), config.journal_max_mb * 1_000_000)
        except OSError as error:
            _LOG.error(
                "log.journal: %s: %s; nothing is written there, give a file in a folder that exists",
                config.journal, error.strerror,
            )  # fmt: skip
            return None

    def write(self, line: str) -> None:
        """Append one line."""
        if not self._open:
            return
        self._left -= len(line)
        if self._left < 0:
            _LOG.warning("the journal %s is full (log.journal_max_mb); nothing more is written", self._path)
            self.close()
            return
        try:
            self._file.write(line)
        except OSError as error:
            _LOG.error("the journal %s cannot be written any more: %s", self._path, error)
            self._open = False

    def close(self) -> None:
        """Write down what is left, and no more. Safe to call twice."""
        if self._open:
            self._open = False
            try:
                self._file.close()
            except OSError as error:
                _LOG.error("the end of the journal %s was not written: %s", self._path, error)
