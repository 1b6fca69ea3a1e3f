"""A build is found by exactly the source it was made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.compiled.modules import MODULES, PACKAGES
from proxy.compiled.store import extension_files, fingerprint, prune, source_root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in PACKAGES:
        (tmp_path / package / "part").mkdir(parents=True)
        (tmp_path / package / "part" / "one.py").write_text("A = 1\n")
    return tmp_path


@pytest.mark.parametrize("package", PACKAGES)
def test_an_edit_anywhere_asks_for_another_build(tree: Path, package: str) -> None:
    before = fingerprint(tree)
    (tree / package / "part" / "one.py").write_text("A = 2\n")
    assert fingerprint(tree) != before
    (tree / package / "part" / "one.py").write_text("A = 1\n")
    assert fingerprint(tree) == before


def test_a_file_that_comes_goes_or_moves_asks_for_another_build(tree: Path) -> None:
    names = {fingerprint(tree)}
    (tree / "proxy" / "two.py").write_text("")
    names.add(fingerprint(tree))
    (tree / "proxy" / "two.py").rename(tree / "proxy" / "three.py")
    names.add(fingerprint(tree))
    assert len(names) == 3


def test_what_is_no_source_does_not_matter(tree: Path) -> None:
    before = fingerprint(tree)
    (tree / "proxy" / "notes.txt").write_text("x")
    (tree / "tests").mkdir()
    (tree / "tests" / "test_x.py").write_text("x")
    assert fingerprint(tree) == before


def test_every_module_that_is_to_be_compiled_is_there_and_named_once() -> None:
    assert len(set(MODULES)) == len(MODULES)
    for name in MODULES:
        assert Path(source_root(), *name.split(".")).with_suffix(".py").is_file(), name


def test_the_latest_builds_are_kept_and_the_present_one_always(tmp_path: Path) -> None:
    for age, name in enumerate(("a", "b", "c", "d")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path / "d")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "d"]


def test_a_folder_that_is_not_there_holds_no_build(tmp_path: Path) -> None:
    assert extension_files(tmp_path / "none") == {}
