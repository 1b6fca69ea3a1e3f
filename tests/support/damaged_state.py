"""Ways in which a state file can be damaged, in the way, or not to be written. Each takes the path of a good one."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["DAMAGES", "Damage"]

Damage = Callable[[Path], None]


def _settled(path: Path) -> None:
    """Move everything from the log into the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _bytes(change: Callable[[bytearray], bytes | bytearray]) -> Damage:
    def damage(path: Path) -> None:
        _settled(path)
        path.write_bytes(change(bytearray(path.read_bytes())))

    return damage


def _flipped(seed: int, count: int) -> Damage:
    def change(content: bytearray) -> bytearray:
        rng = random.Random(seed)
        for _ in range(count):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return content

    return _bytes(change)


def _at(offset: int, value: bytes) -> Damage:
    def change(content: bytearray) -> bytearray:
        content[offset : offset + len(value)] = value
        return content

    return _bytes(change)


def _sql(*statements: str) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return damage


def _entry(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """What was kept of a pool, changed."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            rows = connection.execute("SELECT name, state FROM pools WHERE name = 'default'").fetchall()
            assert rows, "there must be something to damage"
            for name, text in rows:
                changed = json.dumps(change(json.loads(text)))
                connection.execute("UPDATE pools SET state = ? WHERE name = ?", (changed, name))

    return damage


def _folder(path: Path) -> None:
    _gone(path)
    path.mkdir()


def _gone(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _dangling(path: Path) -> None:
    _gone(path)
    path.symlink_to(path.parent / "nowhere" / "state.db")


def _circle(path: Path) -> None:
    _gone(path)
    path.symlink_to(path)


def _pipe(path: Path) -> None:
    _gone(path)
    os.mkfifo(path)


def _no_parent(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.touch()


def _log_of_noise(path: Path) -> None:
    _settled(path)
    Path(f"{path}-wal").write_bytes(random.Random(1).randbytes(40_000))
    Path(f"{path}-shm").write_bytes(random.Random(2).randbytes(32_768))


def _lock_is_a_folder(path: Path) -> None:
    lock = Path(f"{path}.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()


def _plans(value: Any) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO pools VALUES ('/plans', ?)", (json.dumps(value),))

    return damage


DAMAGES: dict[str, Damage] = {
    "empty": _bytes(lambda content: b""),
    "half": _bytes(lambda content: content[: len(content) // 2]),
    "cut in a page": _bytes(lambda content: content[:5000]),
    "cut in the header": _bytes(lambda content: content[:50]),
    "one page": _bytes(lambda content: content[:4096]),
    "tail of zeros": _bytes(lambda content: content[: len(content) // 2] + bytes(len(content) // 2)),
    "all zeros": _bytes(lambda content: bytes(len(content))),
    "text": _bytes(lambda content: b"this is no database, and long enough for one page " * 100),
    "noise": _bytes(lambda content: random.Random(3).randbytes(len(content))),
    "no magic": _at(0, b"SQLite format 4\0"),
    "odd page size": _at(16, b"\x13\x37"),
    "newer format": _at(18, b"\x09\x09"),
    "page count": _at(28, b"\x7f\xff\xff\xff"),
    "free list": _at(32, b"\x00\x00\x13\x37\x00\x00\x00\x09"),
    "schema page": _at(100, b"\xff" * 60),
    "a flipped bit": _flipped(1, 1),
    "200 flipped bits": _flipped(2, 200),
    "5,000 flipped bits": _flipped(3, 5000),
    "a log of noise": _log_of_noise,
    "no tables": _sql("DROP TABLE pools", "DROP TABLE audit", "DROP TABLE predictors"),
    "other columns": _sql("DROP TABLE pools", "CREATE TABLE pools (id INTEGER)"),
    "a view": _sql("DROP TABLE audit", "CREATE VIEW audit AS SELECT 1 AS number"),
    "somebody else's": _sql(
        "DROP TABLE pools", "DROP TABLE audit", "DROP TABLE predictors", "CREATE TABLE customers (name TEXT)"
    ),
    "no JSON": _sql("UPDATE pools SET state = '{'"),
    "not UTF-8": _sql("UPDATE pools SET state = CAST(X'7BFFFE7D' AS TEXT)"),
    "deep JSON": _sql(f"UPDATE pools SET state = '{'[' * 3000}'"),
    "JSON of another shape": _sql("UPDATE pools SET state = '[1, 2]'"),
    "odd audit": _sql(
        "INSERT INTO audit (entry) VALUES ('{')", """INSERT INTO audit (entry) VALUES ('{"id": []}')"""
    ),
    "fields gone": _entry(lambda state: {"version": state["version"], "upstreams": state["upstreams"]}),
    "odd setpoints": _entry(lambda state: state | {"setpoints": {"max_batch_size": "many", "window_ms": None}}),
    "infinite knobs": _entry(lambda state: state | {"setpoints": {"max_batch_size": 1e400, "window_ms": -1e400}}),
    "odd pins": _entry(lambda state: state | {"pins": {"max_batch_size": [1]}}),
    "odd SLO": _entry(lambda state: state | {"slo": {"e2e_s": -5, "other": 1}}),
    "odd law": _entry(lambda state: state | {"law": 5, "law_options": "none"}),
    "odd requests": _entry(lambda state: state | {"observations": [[1], None, "x", [float("nan")] * 15]}),
    "requests of the future": _entry(
        lambda state: state | {"observations": [[*row[:2], 1e300, *row[3:]] for row in state["observations"]]}
    ),
    "odd plans": _plans({"expiring": [{"pool": 1}, 7], "planned": [{"id": "x"}, None, {"pool": "default"}]}),
    "plans of another shape": _plans({"expiring": 5, "planned": {"a": 1}}),
    "a folder": _folder,
    "a dangling link": _dangling,
    "a link to itself": _circle,
    "a pipe": _pipe,
    "a file for a folder": _no_parent,
    "the lock is a folder": _lock_is_a_folder,
}
"""By name."""
