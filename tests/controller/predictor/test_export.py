from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.predictor.export import (
    Ensemble,
    EnsembleError,
    Node,
    Tree,
    check_tree,
    compile_ensemble,
    generate,
    tree_from,
    tree_numbers,
)
from tests.support.late import late

boosting = late("controller.predictor.boosting")

FEATURES = 5
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@st.composite
def trees(draw: Callable[..., object]) -> Tree:
    """A random binary tree, nodes in the order they are made, so that children come after their parent."""
    nodes: list[Node] = []
    open_places = [0]
    size = 1
    while open_places:
        place = open_places.pop(0)
        if size < 13 and draw(st.booleans()):
            nodes.append(
                Node(
                    draw(st.integers(0, FEATURES - 1)),  # type: ignore[arg-type]
                    draw(numbers),  # type: ignore[arg-type]
                    size,
                    size + 1,
                    0.0,
                    draw(st.booleans()),  # type: ignore[arg-type]
                )
            )
            open_places += [size, size + 1]
            size += 2
        else:
            nodes.append(Node(0, 0.0, 0, 0, draw(numbers), False))  # type: ignore[arg-type]
        assert place == len(nodes) - 1
    return tuple(nodes)


ensembles = st.builds(Ensemble, st.just(FEATURES), numbers, st.lists(trees(), max_size=20).map(tuple))


def walk(ensemble: Ensemble, x: list[float]) -> float:
    total = ensemble.baseline
    for tree in ensemble.trees:
        node = tree[0]
        while not node.leaf:
            value = x[node.feature]
            left = node.missing_left if math.isnan(value) else value <= node.threshold
            node = tree[node.left if left else node.right]
        total += node.value
    return total


@settings(max_examples=60, deadline=None)
@given(ensemble=ensembles, data=st.data())
def test_generated_code_answers_as_a_walk_down_the_trees_does(ensemble: Ensemble, data: st.DataObject) -> None:
    score = compile_ensemble(ensemble)
    thresholds = [node.threshold for tree in ensemble.trees for node in tree if not node.leaf]
    value = st.one_of(st.just(math.nan), numbers, st.sampled_from(thresholds or [0.0]))
    for _ in range(5):
        x = data.draw(st.lists(value, min_size=FEATURES, max_size=FEATURES))
        assert score(x) == pytest.approx(walk(ensemble, x), rel=1e-12, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(ensemble=ensembles)
def test_trees_survive_as_numbers(ensemble: Ensemble) -> None:
    assert tuple(tree_from(tree_numbers(tree)) for tree in ensemble.trees) == ensemble.trees


@settings(max_examples=30, deadline=None)
@given(ensemble=ensembles)
def test_generated_code_holds_nothing_but_comparisons_and_numbers(ensemble: Ensemble) -> None:
    word = r"def score\(x\):|return|if|else|not|x\[\d+\]|x\d+|<=|>|=|\(|\)|\+|-?\d+\.\d+(e[+-]?\d+)?|-?\d+e[+-]?\d+"
    for source in generate(ensemble):
        assert not re.sub(rf"({word}|\s)", "", source)


@pytest.mark.parametrize("seed", range(4))
def test_the_export_equals_scikit_learn_with_missing_values_anywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 6))
    x[:, 4] = np.round(x[:, 4])
    y = x[:, 0] + np.abs(x[:, 1]) + rng.normal(size=400)
    x[rng.random(x.shape) < 0.25] = np.nan
    x[:, 5] = np.nan  # a feature nobody ever sends
    fitted = boosting.fit_quantile(x, y, rng.random(400) + 0.1, 0.9, trees=30, seed=seed)
    ensemble = boosting.to_ensemble(fitted)
    probes = rng.normal(size=(256, 6))
    probes[rng.random(probes.shape) < 0.3] = np.nan
    assert boosting.parity(fitted, ensemble, probes)[0] < 1e-9


LEAF = [0, 0.0, 0, 0, 1.0, 0]


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ([], "0 nodes"),
        ([[0, 0.0, 0, 0, math.nan, 0]], "value nan"),
        ([[0, 0.0, 0, 0, math.inf, 0]], "value inf"),
        ([[0, math.nan, 1, 2, 0.0, 0], LEAF, LEAF], "threshold nan"),
        ([[0, math.inf, 1, 2, 0.0, 0], LEAF, LEAF], "threshold inf"),
        ([[9, 0.0, 1, 2, 0.0, 0], LEAF, LEAF], "feature 9"),
        ([[-1, 0.0, 1, 2, 0.0, 0], LEAF, LEAF], "feature -1"),
        ([[0, 0.0, 1, 1, 0.0, 0], LEAF], "child 1"),
        ([[0, 0.0, 1, 5, 0.0, 0], LEAF], "child 5"),
        ([[0, 0.0, 1, 2, 0.0, 0], [0, 0.0, 1, 2, 0.0, 0], LEAF], "child"),
        ([LEAF, LEAF], "no parent"),
        ([[0, "__import__('os')", 1, 2, 0.0, 0], LEAF, LEAF], "not a tree"),
        (["print(1)"], "not a tree"),
        ([[0, 0.0, 1]], "not a tree"),
        (None, "not a"),
    ],
)
def test_unsound_numbers_never_become_code(tree: object, why: str) -> None:
    with pytest.raises(EnsembleError, match=why.split(maxsplit=1)[0]):
        check_tree(tree_from(tree), 3)  # type: ignore[arg-type]


def test_a_vector_of_another_width_is_refused() -> None:
    score = compile_ensemble(Ensemble(2, 1.0, ()))
    with pytest.raises(EnsembleError, match="3 features"):
        score([1.0, 2.0, 3.0])
