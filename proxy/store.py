"""A SQLite file that keeps state and audit log over a restart. Synchronous: call it from a thread."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Store", "StoreError"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pools (name TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS predictors (pool TEXT PRIMARY KEY, lines TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS audit (number INTEGER PRIMARY KEY AUTOINCREMENT, entry TEXT NOT NULL) STRICT;
"""
_KEPT_AUDIT = 100_000


class StoreError(Exception):
    """The file cannot be used. The text names it."""


class Store:
    """One file. Every call opens it anew, so that any thread may call, and a deleted file comes back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(_SCHEMA)
        except OSError as error:
            raise StoreError(
                f"state.path: {path}: {error}; move it away, or give a file in a folder that can be written to"
            ) from None

    def save(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the states of pools, all or none of them."""
        with self._open() as connection:
            connection.executescript(_SCHEMA)
            connection.executemany(
                "INSERT INTO pools VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET state = excluded.state",
                [(name, json.dumps(state)) for name, state in states.items()],
            )

    def load(self) -> dict[str, dict[str, Any]]:
        """Return what was kept, by pool. Raises StoreError when it cannot be read."""
        try:
            with self._open() as connection:
                rows = connection.execute("SELECT name, state FROM pools").fetchall()
            return {name: json.loads(state) for name, state in rows}
        except (OSError, ValueError) as error:
            raise StoreError(f"state.path: {self.path} cannot be read: {error}; move it away to start anew") from None

    def save_predictor(self, pool: str, lines: str) -> None:
        """Keep what the predictor of `pool` has learned."""
        with self._open() as connection:
            connection.executescript(_SCHEMA)
            connection.execute(
                "INSERT INTO predictors VALUES (?, ?) ON CONFLICT (pool) DO UPDATE SET lines = excluded.lines",
                (pool, lines),
            )

    def load_predictor(self, pool: str) -> str | None:
        """Return what was kept of the predictor of `pool`; None when nothing was."""
        with self._open() as connection:
            row = connection.execute("SELECT lines FROM predictors WHERE pool = ?", (pool,)).fetchone()
        return None if row is None else str(row[0])

    def record(self, entries: list[dict[str, Any]]) -> None:
        """Append to the audit log; the oldest entries go when there are too many."""
        with self._open() as connection:
            connection.executescript(_SCHEMA)
            connection.executemany("INSERT INTO audit (entry) VALUES (?)", [(json.dumps(one),) for one in entries])
            connection.execute(
                "DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (_KEPT_AUDIT,)
            )

    def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest entries of the audit log, newest first."""
        with self._open() as connection:
            rows = connection.execute("SELECT entry FROM audit ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
        return [json.loads(entry) for (entry,) in rows]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in one transaction. Raises OSError for whatever SQLite runs into."""
        try:
            connection = sqlite3.connect(self.path, timeout=5.0)
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise OSError(str(error)) from error
