"""Operations are done once each, in order and by all threads together, whatever the number of threads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
import torch

from backend.native.kernels import Kernels, load_kernels
from backend.native.products import load_products
from backend.native.team import Program, record


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    found = load_kernels()
    if found is None:
        pytest.skip("no C compiler")
    yield found
    torch.set_num_threads(1)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Chain:
    """A result that needs every operation before it, none of them done twice."""

    def __init__(self, kernels: Kernels) -> None:
        products = load_products()
        assert products is not None
        self._kernels, self._products = kernels, products
        self._weight, self._ones = products.pack(_random(192, 96, seed=1) / 8), torch.ones(96)

    def __call__(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        normed, total = self._kernels.norm(x, self._ones, 1e-6), x
        for _ in range(depth):
            mixed = self._kernels.gate(self._products.multiply(normed, self._weight, None), "silu")
            normed, total = self._kernels.add_norm(mixed, total, self._ones, 1e-6)
        return normed


def test_a_program_gives_the_same_for_any_number_of_rows_and_threads(kernels: Kernels) -> None:
    torch.set_num_threads(1)
    x, chain = _random(40, 96), Chain(kernels)
    wants = {rows: chain(x[:rows].clone(), 12) for rows in (1, 2, 39, 40)}
    buffer = torch.zeros(40, 96)
    with record() as recording:
        result = chain(buffer, 12)
    program = Program(recording, 40, result)
    for threads in (1, 3, 2, 5, 1, 4):
        torch.set_num_threads(threads)
        for rows, want in wants.items():
            buffer[:rows] = x[:rows]
            program.run(rows)
            assert torch.equal(result[:rows], want), (threads, rows)


def test_recording_does_nothing(kernels: Kernels) -> None:
    x = _random(4, 96)
    total = x.clone()
    with record() as recording:
        kernels.add_norm(total, x, torch.ones(96), 1e-6)
    assert torch.equal(total, x)
    assert len(recording.operations) == 1


def test_results_that_are_done_with_share_their_memory(kernels: Kernels) -> None:
    chain = Chain(kernels)

    def needed(depth: int) -> int:
        with record() as recording:
            result = chain(torch.zeros(8, 96), depth)
        return sum(tensor.nbytes for tensor in Program(recording, 8, result)._kept)

    assert needed(30) == needed(6)


def test_many_short_lists_come_out_right(kernels: Kernels) -> None:
    torch.set_num_threads(4)
    x = _random(256, 96)
    want = kernels.norm(x, torch.ones(96), 1e-6)
    for _ in range(2000):
        assert torch.equal(kernels.norm(x, torch.ones(96), 1e-6), want)


def _in_a_child(results: multiprocessing.SimpleQueue[bool]) -> None:
    kernels = load_kernels()
    assert kernels is not None
    x = _random(256, 96)
    results.put(bool(torch.isfinite(kernels.norm(x, torch.ones(96), 1e-6)).all()))


def test_a_fork_has_a_team_of_its_own(kernels: Kernels) -> None:
    torch.set_num_threads(3)
    kernels.norm(_random(256, 96), torch.ones(96), 1e-6)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.SimpleQueue[bool] = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(results,))
    child.start()
    child.join(30)
    try:
        assert child.exitcode == 0
        assert results.get()
    finally:
        child.kill()
