from __future__ import annotations

import numpy as np
import pytest

from controller.predictor.censoring import kaplan_meier, redistribute
from tests.support.late import late

boosting = late("controller.predictor.boosting")


def test_without_cut_answers_it_is_the_empirical_distribution() -> None:
    values = np.array([3.0, 1.0, 2.0, 4.0])
    whole = np.zeros(4, dtype=bool)
    assert kaplan_meier(values, whole, np.ones(4)) == pytest.approx([0.75, 0.25, 0.5, 1.0])
    x = np.arange(4.0)[:, None]
    assert redistribute(x, values, whole, np.ones(4), 0.5)[1] is values


def test_kaplan_meier_matches_a_worked_example() -> None:
    values = np.array([1.0, 2.0, 2.0, 3.0, 4.0])
    cut = np.array([False, False, True, False, True])
    survival = [0.8, 0.8 * 0.75, 0.8 * 0.75, 0.8 * 0.75 * 0.5, 0.8 * 0.75 * 0.5]
    assert kaplan_meier(values, cut, np.ones(5)) == pytest.approx([1 - s for s in survival])


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_quantiles_come_out_right_though_many_answers_were_cut(q: float) -> None:
    rng = np.random.default_rng(6)
    true = rng.normal(5.0, 1.0, 20_000)
    bound = rng.uniform(4.0, 8.0, 20_000)
    cut = true > bound
    seen = np.minimum(true, bound)
    _, values, weight = redistribute(np.zeros((20_000, 1)), seen, cut, np.ones(20_000), q)
    assert boosting.weighted_quantile(values, weight, q) == pytest.approx(np.quantile(true, q), abs=0.06)
    assert boosting.weighted_quantile(seen, np.ones(20_000), q) < np.quantile(true, q) - 0.1
    assert weight.sum() == pytest.approx(20_000)
