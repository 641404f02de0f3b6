"""Shapes that a registration asks for, and what is said of those that cannot be meant."""

from pathlib import Path

import pytest

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import MAX_SHAPES, ModelOptions
from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph
from braid.core.padding import BY_REQUEST, ZEROS, PaddedAxis, PaddedInput
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.host.report import BatchAxes, Report, Verified


def padded(axis: str, dimension: int, *, exact: bool = True) -> PaddedAxis:
    inputs = {"x": PaddedInput(dimension, ZEROS)}
    shown_by, reason = (BY_REQUEST, "") if exact else ("", "its mean is not masked")
    return PaddedAxis(axis, exact, inputs, {"y": dimension}, 256, 0.0, shown_by, reason)


def imported(options: ModelOptions, *padding: PaddedAxis) -> ImportedModel:
    """A model of x [batch, s, t], checked at [1, 8, 4]."""
    graph = OpGraph("m", {"x": TensorType("FP32", (BATCH, "s", "t"))}, {}, {}, (), {})
    report = Report(
        *("0" * 64, 1, "onnx", 17, BatchAxes({"x": 0}, {"y": 0}), ()),
        example_shapes={"x": (1, 8, 4)},
        static_values={},
        warnings=(),
        verified=Verified("onnxruntime 1", (1,), 0.0, 1e-4),
        padding=padding,
    )
    return ImportedModel("0" * 64, options, Path(), graph, report)


def shapes_of(model: ImportedModel) -> list[str]:
    return [one.shapes_text for one in model.at_shapes()]


S, T = padded("s", 1), padded("t", 2)
GIVEN = {"x": (1, 16, 4)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ModelOptions(), ["s=8,t=4"]),
        (ModelOptions(lengths="none"), ["s=8,t=4"]),
        (ModelOptions(lengths="64,32"), ["s=32,t=4", "s=64,t=4"]),
        (ModelOptions(input_shapes=GIVEN, lengths="8,16"), ["s=16,t=4", "s=8,t=4"]),
        (
            ModelOptions(input_shapes=GIVEN, more_shapes=({"x": (1, 16, 5)}, {"x": (1, 7, 5)})),
            ["s=16,t=4", "s=16,t=5", "s=7,t=5"],
        ),
    ],
)
def test_the_first_of_the_shapes_is_the_main_one(
    options: ModelOptions, expected: list[str]
) -> None:
    assert shapes_of(imported(options, S)) == expected


def test_a_shape_has_keys_and_programs_of_its_own() -> None:
    first, second = imported(ModelOptions(lengths="32,64"), S).at_shapes()

    assert first.schedule_key("cpu", 1) != second.schedule_key("cpu", 1)
    assert second.program(2).specs == {"x": TensorType("FP32", (2, 64, 4))}


def test_an_extent_is_not_guessed_whose_lengths_are_given() -> None:
    assert imported(ModelOptions(), S).at_shapes()[0].guessed == {"s": 8, "t": 4}
    assert "s" not in imported(ModelOptions(lengths="32"), S).at_shapes()[0].guessed


MANY = tuple({"x": (1, 100 + extent, 4)} for extent in range(MAX_SHAPES - 1))


@pytest.mark.parametrize(
    ("options", "padding", "words"),
    [
        (ModelOptions(lengths="257"), (S,), "length 257 is out of range: .* up to 256"),
        (ModelOptions(lengths="8"), (), "this model has 0 .*the import looked at no axis"),
        (ModelOptions(lengths="8"), (padded("s", 1, exact=False),), "its mean is not masked"),
        (ModelOptions(lengths="8", no_pad=True), (S,), "forbidden at registration"),
        (ModelOptions(lengths="8"), (S, T), "this model has 2"),
        (
            ModelOptions(input_shapes=GIVEN, more_shapes=MANY, lengths="1,2"),
            (S,),
            f"are {MAX_SHAPES + 2} shapes; at most {MAX_SHAPES}",
        ),
    ],
)
def test_shapes_that_cannot_be_scheduled_are_refused(
    options: ModelOptions, padding: tuple[PaddedAxis, ...], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        imported(options, *padding).at_shapes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": "8,8"}, "two of the lengths are equal"),
        ({"lengths": "8,"}, "integers between commas"),
        ({"lengths": "0"}, "lengths start at 1"),
        ({"lengths": ",".join(map(str, range(1, MAX_SHAPES + 2)))}, "at most 16 lengths"),
        ({"lengths": "8", "samples": "1" * 64}, "samples are of one shape"),
        ({"input_shapes": GIVEN, "more_shapes": (GIVEN,)}, "two of the input shapes are equal"),
        ({"input_shapes": GIVEN, "more_shapes": ({},)}, "names the same inputs"),
        ({"input_shapes": GIVEN, "more_shapes": ({"x": (-1,)},)}, "is not a shape"),
        ({"input_shapes": GIVEN, "more_shapes": (*MANY, {"x": (1, 1, 1)})}, "at most 16 shapes"),
    ],
)
def test_options_that_contradict_themselves_are_refused(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ModelOptions(**options)  # type: ignore[arg-type]
