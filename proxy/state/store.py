"""A SQLite file that keeps state and audit log over a restart. Synchronous: call it from a thread.

Nothing about the file decides whether requests are served. One process at a time writes it; another that was given
the same file reads it and keeps nothing. A file that is damaged is moved aside, whole, and a new one begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["Store", "StoreError"]

_LOG = logging.getLogger("trimtab")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pools (name TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS predictors (pool TEXT PRIMARY KEY, lines TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS audit (number INTEGER PRIMARY KEY AUTOINCREMENT, entry TEXT NOT NULL) STRICT;
"""
_COLUMNS = {"pools": ["name", "state"], "predictors": ["pool", "lines"], "audit": ["number", "entry"]}
_KEPT_AUDIT = 100_000
_KEPT_DAMAGED: Final = 3
"""So many damaged files are kept beside the good one; older ones are removed."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})
"""What SQLite says of a file that no retry will mend: damaged, no database at all, or tables that are not ours."""
_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})
_HEADER = b"SQLite format 3\0"
_OURS_ALONE: Final = 0o600
"""What operators did, tenants and models are nobody else's business on a shared machine."""
_CREATING: Final = "mode=rwc"
_WAIT_S: Final = 5.0


class StoreError(Exception):
    """The file cannot be used now. The text names it."""


class _Damaged(OSError):
    """What is in the file cannot be used by anybody."""


class Store:
    """One file. Every call opens it anew, so that any thread may call, and a deleted file comes back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def prepare(self) -> str | None:
        """Take the file for this process and make it ready to be written. Raises StoreError when that cannot be now.

        Returns what was wrong with a damaged file that was moved aside, with its new name; None when nothing was.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
            try:
                self._check()
                return None
            except _Damaged as error:
                return f"{error}; it was moved to {self._set_aside(error)}"
        except OSError as error:
            raise StoreError(f"state.path: {self.path}: {error}") from None

    def close(self) -> None:
        """Let another process have the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def save(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the states of pools, all or none of them. Raises OSError."""
        with self._open() as connection:
            connection.executescript(_SCHEMA)
            connection.executemany(
                "INSERT INTO pools VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET state = excluded.state",
                [(name, json.dumps(state)) for name, state in states.items()],
            )

    def load(self) -> dict[str, dict[str, Any]]:
        """Return what was kept, by pool; entries that cannot be read are logged and left out. Raises StoreError."""
        try:
            rows = self._read("SELECT name, state FROM pools")
        except OSError as error:
            raise StoreError(f"state.path: {self.path} cannot be read: {error}") from None
        found = {}
        for name, state in rows:
            entry = _parsed(state)
            if entry is None:
                _LOG.warning("state.path: %s: what was kept of pool %s is damaged and left out", self.path, name)
            else:
                found[str(name)] = entry
        return found

    def save_predictor(self, pool: str, lines: str) -> None:
        """Keep what the predictor of `pool` has learned. Raises OSError."""
        with self._open() as connection:
            connection.executescript(_SCHEMA)
            connection.execute(
                "INSERT INTO predictors VALUES (?, ?) ON CONFLICT (pool) DO UPDATE SET lines = excluded.lines",
                (pool, lines),
            )

    def load_predictor(self, pool: str) -> str | None:
        """Return what was kept of the predictor of `pool`; None when nothing was. Raises OSError."""
        rows = self._read("SELECT lines FROM predictors WHERE pool = ?", pool)
        return None if not rows else str(rows[0][0])

    def record(self, entries: list[dict[str, Any]]) -> None:
        """Append to the audit log; the oldest entries go when there are too many. Raises OSError."""
        with self._open() as connection:
            connection.executescript(_SCHEMA)
            connection.executemany("INSERT INTO audit (entry) VALUES (?)", [(json.dumps(one),) for one in entries])
            connection.execute(
                "DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (_KEPT_AUDIT,)
            )

    def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest entries of the audit log, newest first, without damaged ones. Raises OSError."""
        rows = self._read("SELECT entry FROM audit ORDER BY number DESC LIMIT ?", limit)
        return [entry for entry in (_parsed(text) for (text,) in rows) if entry is not None]

    # -- inside --------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Hold the lock beside the file. Raises OSError when another process has it."""
        if self._lock is not None:
            return
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OURS_ALONE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "?"
            os.close(lock)
            raise OSError(f"another process keeps its state there (pid {holder})") from None
        except OSError as error:
            # Some network file systems have no locks: then nobody can tell, and it is used as before.
            _LOG.warning("state.path: %s cannot be locked: %s", self.path, error)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def _check(self) -> None:
        """Make the tables, and look at every page. Raises _Damaged, and OSError for what may pass."""
        if self._is_there():
            self._refuse_others_files()
        with self._open() as connection:
            with contextlib.suppress(PermissionError):
                self.path.chmod(_OURS_ALONE)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(_SCHEMA)
            for table, columns in _COLUMNS.items():
                found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                if found != columns:
                    raise _Damaged(f"the table {table} has the columns {', '.join(found)}")
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise _Damaged(str(verdict))

    def _is_there(self) -> bool:
        """Whether there is a file yet. Raises OSError where something else is: to open a pipe is to wait."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise OSError("it is no file")
        return True

    def _refuse_others_files(self) -> None:
        """Raise OSError for a file that somebody has for something else: nothing of it is to be moved or changed."""
        with self.path.open("rb") as file:
            beginning = file.read(len(_HEADER))
        if beginning == _HEADER:
            try:
                rows = self._read("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            except _Damaged:
                return
            ours = sum(name in _COLUMNS for (name,) in rows)
            if len(rows) > 2 * ours:
                raise OSError("it is a database of somebody else's; give a file of its own")
        elif beginning and self.path.suffix not in _SUFFIXES:
            raise OSError("it is no database; give a file of its own")

    def _set_aside(self, error: OSError) -> Path:
        """Move a damaged file out of the way, with what belongs to it, and begin a new one. Raises OSError."""
        name = f"{self.path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 1000:03d}"
        aside = self.path.with_name(name)
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        kept = sorted(self.path.parent.glob(f"{_escaped(self.path.name)}.damaged-*[0-9]"))
        for old in kept[:-_KEPT_DAMAGED]:
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{old}{suffix}").unlink(missing_ok=True)
        self._check()
        return aside

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query, also from a file or folder that cannot be written to. Raises OSError."""
        if not self._is_there():
            return []
        failed: OSError | None = None
        # A file that is not ours to write can be read; one in a folder without write access, only without its log.
        for mode in ("mode=rw", "mode=ro", "immutable=1"):
            try:
                with self._open(mode) as connection:
                    return connection.execute(query, values).fetchall()
            except OSError as error:
                failed = failed or error
        assert failed is not None
        raise failed

    @contextlib.contextmanager
    def _open(self, mode: str = _CREATING) -> Iterator[sqlite3.Connection]:
        """Yield a connection in one transaction. Raises OSError for whatever SQLite runs into."""
        address = f"{self.path.absolute().as_uri()}?{mode}"
        if mode == _CREATING:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OURS_ALONE))
        try:
            connection = sqlite3.connect(address, timeout=_WAIT_S, uri=True)
            connection.text_factory = _text
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            raise (_Damaged if code in _DAMAGED else OSError)(str(error)) from error


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _escaped(name: str) -> str:
    """Return `name` for use in a pattern of file names."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _parsed(text: Any) -> dict[str, Any] | None:
    """Return a JSON object, None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
