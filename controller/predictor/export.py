"""A tree ensemble as plain numbers, and as Python code generated from them.

scikit-learn answers one row in milliseconds; the same trees as nested conditional expressions answer in about ten
microseconds, with the same numbers. An ensemble travels and is stored as numbers only. Code is generated from
validated numbers alone, inside the process that runs it, so nothing that is loaded can smuggle code in.

A missing feature is NaN: every comparison with NaN is false, so `x <= t` sends it right and `not x > t` left.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple

__all__ = ["Ensemble", "EnsembleError", "Node", "check_tree", "compile_ensemble", "generate"]

Score = Callable[[Sequence[float]], float]

CHUNK = 2
"""Trees per generated function: compiling one takes a quarter of a millisecond, so that no lock is held longer."""

MAX_TREES, MAX_NODES, MAX_DEPTH = 2_000, 1_023, 60


class EnsembleError(ValueError):
    """The numbers do not describe a sound ensemble."""


class Node(NamedTuple):
    """One node. Leaves have `left == right == 0`: children always come after their parent, so 0 is never a child."""

    feature: int
    threshold: float
    left: int
    right: int
    value: float
    missing_left: bool

    @property
    def leaf(self) -> bool:
        """Whether this node is a leaf."""
        return self.left == 0


Tree = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """`baseline + sum over trees of the leaf reached`; the link is the identity, as for quantile loss."""

    features: int
    baseline: float
    trees: tuple[Tree, ...]
    sound: InitVar[bool] = False
    """Whether every tree has been through `check_tree` already."""

    def __post_init__(self, sound: bool) -> None:
        if not math.isfinite(self.baseline):
            raise EnsembleError(f"baseline must be finite, not {self.baseline}")
        if len(self.trees) > MAX_TREES:
            raise EnsembleError(f"{len(self.trees)} trees, at most {MAX_TREES} are taken")
        if not sound:
            for tree in self.trees:
                check_tree(tree, self.features)


def tree_numbers(tree: Tree) -> list[list[float]]:
    """Return one tree as JSON-ready numbers."""
    return [[n.feature, n.threshold, n.left, n.right, n.value, int(n.missing_left)] for n in tree]


def tree_from(numbers: Sequence[Sequence[Any]]) -> Tree:
    """Read one tree back. Raises EnsembleError on anything but six numbers a node."""
    try:
        return tuple(
            Node(int(f), float(t), int(left), int(right), float(v), bool(m)) for f, t, left, right, v, m in numbers
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise EnsembleError(f"not a tree: {error}") from error


def generate(ensemble: Ensemble) -> Iterator[str]:
    """Yield the source of one function `score(x)` per CHUNK trees; their sum plus the baseline is the answer."""
    for start in range(0, len(ensemble.trees), CHUNK):
        trees = ensemble.trees[start : start + CHUNK]
        used = sorted({node.feature for tree in trees for node in tree if not node.leaf})
        lines = ["def score(x):"]
        lines += [f"    x{feature} = x[{feature}]" for feature in used]
        lines.append("    return (" + "\n        + ".join(_expression(tree, 0) for tree in trees) + ")")
        yield "\n".join(lines)


def compile_ensemble(ensemble: Ensemble, pause: Callable[[], None] | None = None) -> Score:
    """Return a function from a feature vector to the ensemble's answer.

    `pause` is called between pieces of under a millisecond each, so that a thread doing this can let others run.
    """
    parts: list[Score] = []
    for source in generate(ensemble):
        if pause is not None:
            pause()
        scope: dict[str, Any] = {"__builtins__": {}}
        exec(compile(source, "<length model>", "exec"), scope)
        parts.append(scope["score"])
        if pause is not None:
            pause()
    baseline, expected = ensemble.baseline, ensemble.features

    def score(x: Sequence[float]) -> float:
        if len(x) != expected:
            raise EnsembleError(f"{len(x)} features, the model was trained on {expected}")
        total = baseline
        for part in parts:
            total += part(x)
        return total

    return score


def _expression(tree: Tree, index: int) -> str:
    node = tree[index]
    if node.leaf:
        return repr(float(node.value))
    test = f"not x{node.feature} > " if node.missing_left else f"x{node.feature} <= "
    return f"({_expression(tree, node.left)} if {test}{float(node.threshold)!r} else {_expression(tree, node.right)})"


def check_tree(tree: Tree, features: int) -> None:
    """Raise EnsembleError unless `tree` is a tree of finite numbers over `features` features."""
    if not 0 < len(tree) <= MAX_NODES:
        raise EnsembleError(f"a tree of {len(tree)} nodes, 1 to {MAX_NODES} are taken")
    depth = {0: 0}
    for index, node in enumerate(tree):
        if index not in depth:
            raise EnsembleError(f"node {index} has no parent")
        if not math.isfinite(node.value):
            raise EnsembleError(f"node {index} has the value {node.value}")
        if node.leaf:
            if node.right:
                raise EnsembleError(f"node {index} has one child")
            continue
        if not 0 <= node.feature < features:
            raise EnsembleError(f"node {index} asks for feature {node.feature} of {features}")
        if not abs(node.threshold) <= sys.float_info.max:
            raise EnsembleError(f"node {index} has the threshold {node.threshold}")
        for child in (node.left, node.right):
            if not index < child < len(tree) or child in depth:
                raise EnsembleError(f"node {index} has the child {child}")
            depth[child] = depth[index] + 1
            if depth[child] > MAX_DEPTH:
                raise EnsembleError(f"deeper than {MAX_DEPTH}")
