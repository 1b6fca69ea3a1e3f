from __future__ import annotations

import torch

from backend.engine.embeddings import EmbeddingQueue, Finished
from tests.backend.engine.fake import FakeRunner


class Lengths(FakeRunner):
    """Embeds a text as its length, and notes what came together."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.slices: list[list[int]] = []

    def embed(self, token_ids: list[list[int]], pooling: str) -> torch.Tensor:
        self.slices.append([len(ids) for ids in token_ids])
        return torch.tensor([[float(len(ids))] for ids in token_ids])


def test_a_large_job_is_served_in_slices_of_the_budget_and_comes_back_whole() -> None:
    runner = Lengths()
    queue = EmbeddingQueue(runner, budget=10)
    queue.add(1, [[0] * n for n in (4, 6, 1, 25, 3, 3)], "mean")
    steps: list[Finished | None] = []
    while queue:
        steps.append(queue.step())
    assert runner.slices == [[4, 6], [1], [25], [3, 3]]
    assert steps[:-1] == [None, None, None]
    assert steps[-1] == Finished(1, [[4.0], [6.0], [1.0], [25.0], [3.0], [3.0]])


def test_a_dropped_job_costs_nothing_more() -> None:
    runner = Lengths()
    queue = EmbeddingQueue(runner, budget=4)
    queue.add(1, [[0] * 4, [0] * 4], "mean")
    queue.add(2, [[0]], "mean")
    queue.step()
    queue.drop(1)
    queue.drop(1)
    assert queue.step() == Finished(2, [[1.0]])
    assert runner.slices == [[4], [1]]


def test_a_job_without_texts_has_no_vectors() -> None:
    queue = EmbeddingQueue(Lengths(), budget=4)
    queue.add(1, [], "last")
    assert queue.step() == Finished(1, [])
