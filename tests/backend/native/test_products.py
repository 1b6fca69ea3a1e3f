"""Native products against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backend.models.linear import Linear
from backend.native.products import Products, load_products

ROWS = (1, 5, 12, 13, 16, 17, 32, 33, 70, 205)
"""Around what goes together: groups of 12 or 6 rows and parts of 16 groups of float32, tiles of 16 rows."""


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(params=[1, 3], ids=["1-thread", "3-threads"])
def products(request: pytest.FixtureRequest) -> Iterator[Products]:
    loaded = load_products()
    if loaded is None:
        pytest.skip("no C compiler")
    torch.set_num_threads(request.param)
    yield loaded
    torch.set_num_threads(1)


def _need(products: Products, dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and not products.has_tiles:
        pytest.skip("this processor has no tile registers")


def _random(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@DTYPES
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_equals_the_formula_for_any_number_of_rows(
    products: Products, dtype: torch.dtype, rows: int, biased: bool
) -> None:
    _need(products, dtype)
    weight, x = _random(448, 96, seed=1, dtype=dtype), _random(rows, 96, seed=2, dtype=dtype)
    bias = _random(448, seed=3, dtype=dtype) if biased else None
    want = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = products.multiply(x, products.pack(weight), bias, wide=True)
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)
    assert torch.equal(products.multiply(x, products.pack(weight), bias), got.to(dtype))


@pytest.mark.parametrize("depth", [1, 15, 127, 129, 300])
def test_rows_of_any_length_are_multiplied_in_float32(products: Products, depth: int) -> None:
    weight, x = _random(96, depth, seed=1, dtype=torch.float32), _random(29, depth, seed=2, dtype=torch.float32)
    got = products.multiply(x, products.pack(weight), None)
    torch.testing.assert_close(got.double(), x.double() @ weight.double().T, atol=1e-4, rtol=1e-5)


@DTYPES
def test_a_rows_bits_are_the_same_alone_and_in_any_company(products: Products, dtype: torch.dtype) -> None:
    _need(products, dtype)
    packed = products.pack(_random(64, 576, seed=1, dtype=dtype))
    x = _random(max(ROWS), 576, seed=2, dtype=dtype)
    alone = torch.cat([products.multiply(row[None], packed, None, wide=True) for row in x])
    for rows in ROWS:
        assert torch.equal(products.multiply(x[:rows], packed, None, wide=True), alone[:rows])


@DTYPES
def test_rows_that_do_not_lie_together_are_multiplied_too(products: Products, dtype: torch.dtype) -> None:
    _need(products, dtype)
    packed = products.pack(_random(64, 64, seed=1, dtype=dtype))
    x = _random(8, 128, seed=2, dtype=dtype)[:, :64]
    assert torch.equal(products.multiply(x, packed, None), products.multiply(x.clone(), packed, None))


@pytest.mark.parametrize(
    ("shape", "dtype", "tiles", "taken"),
    [
        ((64, 96), torch.bfloat16, True, True),
        ((64, 96), torch.bfloat16, False, False),
        ((48, 96), torch.bfloat16, True, False),
        ((64, 80), torch.bfloat16, True, False),
        ((64, 80), torch.float32, False, True),
        ((96, 80), torch.float32, False, True),
        ((40, 80), torch.float32, False, False),
        ((64, 96), torch.float16, True, False),
    ],
)
def test_it_says_which_weights_it_takes(
    products: Products,
    shape: tuple[int, int],
    dtype: torch.dtype,
    tiles: bool,
    taken: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "has_tiles", tiles)
    assert products.takes(torch.zeros(shape, dtype=dtype)) is taken


@DTYPES
@pytest.mark.parametrize("shape", [(64, 96), (48, 80)])
def test_a_packed_linear_map_is_the_plain_one(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight, x = _random(*shape, seed=1, dtype=dtype), _random(3, shape[1], seed=2, dtype=dtype)
    linear = Linear(weight)
    linear.pack()
    want = torch.nn.functional.linear(x.double(), weight.double())
    close = 2e-5 if dtype is torch.float32 else 2**-8
    for got, kind in ((linear(x), dtype), (linear.wide(x), torch.float32)):
        assert got.dtype is kind
        torch.testing.assert_close(got.double(), want, atol=close, rtol=close)
