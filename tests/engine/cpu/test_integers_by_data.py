"""Kernels on 8-bit integers whose grid is found in the data, against plain arithmetic in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from braid.engine.ops.families.quantised_unit import QUANTISE
from tests.engine.cpu.test_integers import TYPES, WINDOW, needs_instructions, number, rounded, run

RANDOM = np.random.default_rng(0)


def drawn(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape, dtype=dtype)


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("moving", ["x", "xz"])
@pytest.mark.parametrize("shape", [(1, 7), (5, 300), (2, 3, 64)])
def test_sums_of_products_are_exact(dtype: Any, moving: str, shape: tuple[int, ...]) -> None:
    x, w, zero = drawn(dtype, *shape), drawn(np.int8, shape[-1], 19), number(9, dtype)
    operands = {"x": x, "w": w, "z": zero, "wz": number(0, np.int8)}

    got = run("braid.matmul_integer", operands, moving, {})

    np.testing.assert_array_equal(got, (x.astype(np.int64) - 9) @ w.astype(np.int64))


@needs_instructions
def test_unsigned_weights_around_128_are_signed_ones() -> None:
    x, w = drawn(np.uint8, 4, 20), drawn(np.uint8, 20, 8)
    operands = {"x": x, "w": w, "z": number(3, np.uint8), "wz": number(128, np.uint8)}

    got = run("braid.matmul_integer", operands, "x", {})

    np.testing.assert_array_equal(got, (x.astype(np.int64) - 3) @ (w.astype(np.int64) - 128))


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("moving", ["x", "xz"])
def test_padding_of_a_convolution_adds_nothing(dtype: Any, moving: str) -> None:
    x, w = np.full((1, 4, 5, 5), 9, dtype), drawn(np.int8, 8, 4, 3, 3)
    x[0, 2, 2, 2] = 10
    operands = {"x": x, "w": w, "z": number(9, dtype), "wz": None}

    got = run("braid.convolution_integer", operands, moving, WINDOW)

    wanted = np.zeros((1, 8, 5, 5))
    wanted[0, :, 1:4, 1:4] = w[:, 2, ::-1, ::-1]
    np.testing.assert_array_equal(got, wanted)


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("zero", [0, 3, 100])
def test_a_scale_from_the_data_rounds_half_to_even_and_saturates(dtype: Any, zero: int) -> None:
    x = np.concatenate([np.arange(-300, 300) / 4, np.array([1e30, -1e30])]).astype(np.float32)
    operands = {"x": x, "s": number(0.5), "z": number(zero, dtype)}

    got = run(QUANTISE, operands, "xsz", {"axis": 1, "block": 0, "dtype": None})

    np.testing.assert_array_equal(got, rounded(x, 0.5, zero, dtype))
