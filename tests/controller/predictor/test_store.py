from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.predictor.store import load_state, save_state


def test_state_comes_back_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state({"a": [1, 2.5, None]}, path)
    save_state({"a": [2]}, path)
    assert load_state(path) == {"a": [2]}
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save_state({"a": 1}, path)
    with pytest.raises(TypeError):
        save_state({"a": object()}, path)
    assert load_state(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_what_is_no_state_is_no_state(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert load_state(path) is None
    assert load_state(tmp_path / "none.json") is None
