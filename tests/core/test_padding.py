"""Requests padded along an open axis, and outputs cut back, against numpy."""

from dataclasses import replace

import numpy as np
import pytest

from braid.core.errors import InvalidRequest
from braid.core.inputs import GivenTensor
from braid.core.padding import (
    BY_REQUEST,
    MASK,
    REPEAT,
    ZEROS,
    PaddedAxis,
    PaddedInput,
    as_asked,
    cut,
    pad,
    takes,
)
from braid.core.tensor import TensorType

AXIS = PaddedAxis("s", True, {"x": PaddedInput(1, ZEROS)}, {"y": 1}, 512, 0.0, "construction", "")
RNG = np.random.default_rng(0)


def given(name: str, array: np.ndarray, dtype: str = "FP32") -> GivenTensor:
    return GivenTensor(name, dtype, array.shape, memoryview(array.tobytes()))


@pytest.mark.parametrize("way", [ZEROS, MASK, REPEAT])
@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_padded_input_is_what_numpy_makes(way: str, dimension: int, more: int) -> None:
    array = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    axis = replace(AXIS, inputs={"x": PaddedInput(dimension, way)})
    width = [(0, more if at == dimension else 0) for at in range(3)]

    (padded,) = pad([given("x", array)], axis, array.shape[dimension] + more)

    expected = np.pad(array, width, mode="edge" if way == REPEAT else "constant")
    assert padded.shape == expected.shape
    assert bytes(padded.data) == expected.tobytes()


def test_inputs_without_the_axis_stay_as_they_are() -> None:
    x, scale = given("x", np.ones((1, 2), np.float32)), given("scale", np.ones(1, np.float32))

    padded = pad([scale, x], AXIS, 4)

    assert padded[0] is scale
    assert padded[1].shape == (1, 4)


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_outputs_are_cut_back(dimension: int) -> None:
    array = RNG.integers(0, 99, (4, 5, 6))
    outputs = {"y": (TensorType("INT64", array.shape), array.tobytes()), "z": (SCALAR, b"12345678")}

    back = cut(outputs, replace(AXIS, outputs={"y": dimension}), 3)

    expected = array.take(range(3), dimension)
    assert back["y"] == (TensorType("INT64", expected.shape), expected.tobytes())
    assert back["z"] == outputs["z"]


SCALAR = TensorType("INT64", ())


@pytest.mark.parametrize(
    ("dtype", "one"), [("INT64", "i8"), ("BOOL", "?"), ("FP32", "f4"), ("FP16", "f2")]
)
def test_a_mask_must_begin_with_a_one_in_every_row(dtype: str, one: str) -> None:
    axis = replace(AXIS, inputs={"mask": PaddedInput(1, MASK)})
    good, bad = np.array([[1, 0, 1], [1, 1, 1]], one), np.array([[1, 1, 1], [0, 1, 1]], one)

    assert takes([given("mask", good, dtype)], axis)
    assert not takes([given("mask", bad, dtype)], axis)
    assert not takes([given("mask", good, dtype)], replace(axis, exact=False))
    assert not takes([given("mask", good[:, :0], dtype)], axis)


def test_a_mask_of_another_number_than_one_is_not_taken() -> None:
    axis = replace(AXIS, inputs={"mask": PaddedInput(1, MASK)})

    assert not takes([given("mask", np.array([[2, 1]]), "INT64")], axis)


# What a registration asks for

REFUSED = replace(
    AXIS, exact=False, shown_by="", reason="Mean is over the axis", tried={"zeros": 0.2}
)


def asked(axis: PaddedAxis, ways: dict[str, str], *, is_forbidden: bool = False) -> PaddedAxis:
    (changed,) = as_asked([axis], ways, 1e-4, is_forbidden=is_forbidden)
    return changed


def test_nothing_is_padded_where_it_is_forbidden() -> None:
    axis = asked(AXIS, {}, is_forbidden=True)

    assert not axis.exact
    assert "forbidden" in axis.text()


def test_padding_that_trials_confirm_may_be_asked_for() -> None:
    axis = asked(replace(REFUSED, tried={"repeat": 1e-6, "zeros": 1.0}), {"s": "repeat"})

    assert axis.exact
    assert axis.inputs == {"x": PaddedInput(1, REPEAT)}
    assert axis.error == 1e-6
    assert axis.shown_by == BY_REQUEST


@pytest.mark.parametrize(
    ("axis", "ways", "said"),
    [
        (REFUSED, {"s": "zeros"}, "error of 0.2 .*Mean is over the axis"),
        (REFUSED, {"s": "repeat"}, "ran in no trial"),
        (REFUSED, {"t": "zeros"}, "pad names t; axes looked at in the import: s"),
        (AXIS, {"s": "repeat"}, "ran in no trial"),
    ],
)
def test_other_padding_is_refused(axis: PaddedAxis, ways: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        asked(axis, ways)


def test_zeros_may_be_asked_for_where_they_are_exact() -> None:
    assert asked(AXIS, {"s": "zeros"}) == AXIS
