"""No interpreted class extends a compiled one that is not marked for it: that is a TypeError where it is compiled.

It is read from the source: classes within functions count, and nothing has to be compiled or imported.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from proxy.compiled.modules import MODULES, PACKAGES

ROOT = Path(__file__).parents[3]
FOLDERS = (*PACKAGES, "backend", "benchmarks/hostile")
"""What runs compiled in one process; the other benchmarks run from source, or the proxy as a process of its own."""
MARK = "allow_interpreted_subclasses=True"


class Sources:
    """The modules below some folders: what each name in them stands for, and the classes they define."""

    def __init__(self, root: Path, folders: Collection[str]) -> None:
        self.trees: dict[str, ast.Module] = {}
        for folder in folders:
            for path in sorted((root / folder).rglob("*.py")):
                name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
                self.trees[name] = ast.parse(path.read_text())
        self._names = {module: dict(names_in(module, tree)) for module, tree in self.trees.items()}

    def classes(self, module: str) -> list[ast.ClassDef]:
        """Return every class of a module, those within functions and classes included."""
        return [node for node in ast.walk(self.trees[module]) if isinstance(node, ast.ClassDef)]

    def resolve(self, module: str, expression: ast.expr) -> str:
        """Return the dotted name of what a base class is written as, followed through imports and other names."""
        if isinstance(expression, ast.Subscript):
            return self.resolve(module, expression.value)
        if isinstance(expression, ast.Attribute):
            return self._follow(f"{self.resolve(module, expression.value)}.{expression.attr}")
        if isinstance(expression, ast.Name):
            return self._follow(f"{module}.{expression.id}")
        return ""

    def _follow(self, dotted: str) -> str:
        seen: set[str] = set()
        while dotted not in seen and dotted not in self.trees:
            seen.add(dotted)
            module, _, name = dotted.rpartition(".")
            dotted = self._names.get(module, {}).get(name, dotted)
        return dotted


def names_in(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, what it stands for, dotted) for imports, wherever they are, and for other names of things."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, f"{module}.{node.value.id}"


def unmarked(sources: Sources, compiled: Collection[str]) -> set[str]:
    """Return a sentence for each interpreted class that extends a class of a compiled module that is not marked."""
    closed = {
        f"{module}.{node.name}"
        for module in compiled
        for node in sources.classes(module)
        if not any(MARK in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    return {
        f"{module}.{node.name} extends {base}"
        for module in sources.trees
        if module not in compiled
        for node in sources.classes(module)
        for base in (sources.resolve(module, each) for each in node.bases)
        if base in closed
    }


def test_every_compiled_class_that_interpreted_ones_extend_is_marked() -> None:
    assert unmarked(Sources(ROOT, FOLDERS), MODULES) == set()


def test_the_check_finds_one_however_its_base_is_written(tmp_path: Path) -> None:
    files = {
        "fast.py": "class Closed: ...\n@mypyc_attr(allow_interpreted_subclasses=True)\nclass Open: ...\n",
        "__init__.py": "from house.fast import Closed as Known\nfrom house.fast import Open\n",
        "plain.py": "from house.fast import Closed, Open\nclass Wrong(Closed): ...\nclass Right(Open): ...\n",
        "deep.py": "class Low: ...\ndef make():\n    from house import Known\n    class Local(Low, Known): ...\n",
        "dotted.py": "import house.fast\nclass One(house.fast.Closed): ...\n",
        "generic.py": "import house as h\nclass Two(h.Known[int]): ...\n",
        "far.py": "from house.plain import Wrong\nclass Far(Wrong): ...\n",
        "renamed.py": "from house.fast import Closed\nBase = Closed\nclass Hidden(Base): ...\n",
    }
    (tmp_path / "house").mkdir()
    for name, text in files.items():
        (tmp_path / "house" / name).write_text(text)
    assert unmarked(Sources(tmp_path, ["house"]), ["house.fast"]) == {
        "house.plain.Wrong extends house.fast.Closed",
        "house.deep.Local extends house.fast.Closed",
        "house.dotted.One extends house.fast.Closed",
        "house.generic.Two extends house.fast.Closed",
        "house.renamed.Hidden extends house.fast.Closed",
    }


def test_the_check_finds_one_planted_among_our_own(tmp_path: Path) -> None:
    for folder in PACKAGES:
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "pool.py").write_text(
        "from proxy.dispatch.pool import Pool\n\n\nclass Slower(Pool):\n    pass\n"
    )
    found = unmarked(Sources(tmp_path, [*PACKAGES, "planted"]), MODULES)
    assert found == {"planted.pool.Slower extends proxy.dispatch.pool.Pool"}
