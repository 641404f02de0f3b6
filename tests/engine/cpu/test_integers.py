"""Products and quantisation on integers against plain arithmetic, with scales given and found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.core.graph import Literal
from braid.engine.cpu import device_key
from braid.engine.cpu.device_key import has_integer_kernels
from braid.engine.ops.families.quantised_unit import DEQUANTISE, KIND, QUANTISE
from braid.engine.runtime import instructions
from tests.engine.cpu.executors import on_tensors
from tests.engine.cpu.test_kernels import all_kernels, unit_graph

Array = NDArray[Any]

needs_instructions = pytest.mark.skipif(
    not has_integer_kernels(), reason="the CPU has no instructions for sums of 8-bit products"
)

PLAIN: dict[str, Literal] = {
    "middle": False, "quantised": True, "before": [], "after": [],
}  # fmt: skip
WINDOW: dict[str, Literal] = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
TYPES = [np.uint8, np.int8]


def run(
    kind: str, operands: Mapping[str, Array | None], moving: str, attributes: dict[str, Literal]
) -> Array:
    """The unit's result on oneDNN; all operands but ``moving`` are constants."""
    tensors = {
        name: None if array is None else torch.from_numpy(np.asarray(array))
        for name, array in operands.items()
    }
    constants = [name for name in tensors if name not in moving]
    graph, weights = unit_graph(kind, tensors, constants, attributes)
    result = on_tensors(all_kernels(graph, weights)["onednn"], 2)(*tensors.values())
    return (result if isinstance(result, Tensor) else result[0]).numpy()


def number(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def rounded(x: Array, scale: float, zero: int, dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    steps = np.rint(x / np.float32(scale)) + zero
    found: Array = np.clip(steps, limits.min, limits.max).astype(dtype)
    return found


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("zero", [0, 3, 100])
@pytest.mark.parametrize("moving", ["x", "xsz"])  # a constant scale, or one from the data
def test_quantising_rounds_half_to_even_and_saturates(moving: str, dtype: Any, zero: int) -> None:
    ties = np.arange(-300, 300, dtype=np.float32) / 4
    x = np.concatenate([ties, np.array([1e30, -1e30, 3e9, -3e9], np.float32)])
    if moving == "x":
        x = np.concatenate([x, np.array([np.inf, -np.inf], np.float32)])
    operands = {"x": x, "s": number(0.5), "z": number(zero, dtype)}

    got = run(QUANTISE, operands, moving, {"axis": 1, "block": 0, "dtype": None})

    np.testing.assert_array_equal(got, rounded(x, 0.5, zero, dtype))


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
def test_every_integer_dequantises_exactly(dtype: Any) -> None:
    x = np.arange(256).astype(np.uint8).view(dtype)
    operands = {"x": x, "scale": number(0.1), "zero": number(7, dtype)}

    got = run(DEQUANTISE, operands, "x", {"axis": 1, "block": 0, "dtype": None})

    np.testing.assert_array_equal(got, (x.astype(np.float32) - 7) * np.float32(0.1))


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("weight", [127, -128])
def test_sums_of_the_largest_products_are_exact(dtype: Any, weight: int) -> None:
    # Pairs of such products overflow 16 bits, in which CPUs without VNNI add them.
    x = np.full((3, 1000), np.iinfo(dtype).max, dtype)
    operands = {
        "x": x, "w": np.full((5, 1000), weight, np.int8), "b": None,
        "xs": number(1), "xz": number(0, dtype), "ws": number(1), "wz": None, "bs": None,
        "bz": None,
    }  # fmt: skip
    given = {**PLAIN, "unit": "aten.linear", "operands": 3, "quantised": False}

    got = run(KIND, operands, "x", given)

    np.testing.assert_array_equal(got, np.full((3, 5), 1000.0 * weight * np.iinfo(dtype).max))


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("zero", [0, 9])
def test_ten_thousand_rows_agree_with_plain_arithmetic(dtype: Any, zero: int) -> None:
    random = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    x = random.integers(limits.min, limits.max + 1, (10_000, 24), dtype=dtype)
    w = random.integers(-127, 128, (16, 24), dtype=np.int8)
    scales = random.uniform(0.001, 0.01, 16).astype(np.float32)
    bias = random.standard_normal(16).astype(np.float32)
    operands = {
        "x": x, "w": w, "b": bias, "xs": number(0.02), "xz": number(zero, dtype), "ws": scales,
        "wz": None, "bs": None, "bz": None, "ys": number(0.05), "yz": number(5, dtype),
    }  # fmt: skip

    got = run(KIND, operands, "x", {**PLAIN, "unit": "aten.linear", "operands": 3})

    sums = (x.astype(np.int64) - zero) @ w.astype(np.int64).T
    wanted = rounded((sums * (0.02 * scales) + bias).astype(np.float32), 0.05, 5, dtype)
    gaps = np.abs(got.astype(int) - wanted.astype(int))
    assert gaps.max() <= 1
    assert (gaps > 0).mean() < 1e-3  # where a sum lies at a tie


@needs_instructions
@pytest.mark.parametrize("dtype", TYPES)
def test_padding_stands_for_the_zero_point(dtype: Any) -> None:
    x = np.full((1, 4, 5, 5), 9, dtype)  # zero everywhere, so that only the padding could add
    operands = {
        "x": x, "w": np.full((8, 4, 3, 3), 50, np.int8), "b": None,
        "xs": number(1), "xz": number(9, dtype), "ws": number(1), "wz": None, "bs": None,
        "bz": None,
    }  # fmt: skip
    given = {**PLAIN, **WINDOW, "unit": "aten.convolution", "operands": 3, "quantised": False}

    got = run(KIND, operands, "x", given)

    np.testing.assert_array_equal(got, np.zeros((1, 8, 5, 5)))


def test_nan_becomes_the_least_integer() -> None:
    graph, weights = unit_graph(
        QUANTISE,
        {"x": torch.tensor([torch.nan, 1.0]), "scale": torch.tensor(1.0),
         "zero": torch.tensor(3, dtype=torch.int8)},
        ["scale", "zero"],
        {"axis": 1, "block": 0, "dtype": None},
    )  # fmt: skip
    kernels = all_kernels(graph, weights)

    result = on_tensors(kernels["registry"], 1)(torch.tensor([torch.nan, 1.0]), *weights.values())

    assert isinstance(result, Tensor)
    assert result.tolist() == [-128, 4]
    assert all(k.needs_finite for name, k in kernels.items() if name != "registry")


@pytest.mark.parametrize(
    ("flags", "has"), [("avx2 avx512f", False), ("avx2 avx_vnni", True), ("avx512_vnni", True)]
)
def test_only_cpus_with_instructions_for_it_compute_on_integers(
    flags: str, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "cpuinfo"
    information.write_text(f"flags\t\t: fpu {flags}\n")
    monkeypatch.setattr(instructions, "CPU_INFORMATION", information)
    monkeypatch.setattr(device_key, "find_onednn", object)

    assert has_integer_kernels() is has


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
