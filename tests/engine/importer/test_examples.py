from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from braid.core.errors import InvalidRequest, ModelImportError
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import Dim, TensorType
from braid.engine.importer.verification.example_inputs import (
    Example,
    Trials,
    check_memory,
    find_example,
)
from braid.engine.importer.verification.likely_shapes import shape_candidates
from braid.engine.importer.verification.reference import NO_WORDS, ReferenceFailed, Words


def template(dtype: str = "FP32", **inputs: Sequence[Dim]) -> OpGraph:
    first = next(iter(inputs))
    return OpGraph(
        name="drawn",
        inputs={name: TensorType(dtype, tuple(shape)) for name, shape in inputs.items()},
        outputs={"y": "r"},
        constants={},
        operators=(Operator("relu", "aten.relu", (first,), ("r",)),),
    )


def first_shapes(graph: OpGraph, count: int = 2) -> list[dict[str, tuple[Dim, ...]]]:
    found = islice(shape_candidates(graph, {}), count)
    return [{name: spec.shape for name, spec in specs.items()} for specs in found]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (template(x=["n", 3, "h", "w"]), [{"x": (1, 3, 224, 224)}, {"x": (1, 3, 48, 320)}]),
        (template(x=["n", 3, 48, "w"]), [{"x": (1, 3, 48, 320)}]),  # a line of text
        (template(x=["n", "h", "w", 3]), [{"x": (1, 224, 224, 3)}]),
        (
            template("INT64", ids=["b", "s"], mask=["b", "s"]),
            [{"ids": (1, 128), "mask": (1, 128)}],
        ),
    ],
)
def test_likely_shapes_of_images_text_and_tokens_come_first(
    graph: OpGraph, expected: list[dict[str, tuple[Dim, ...]]]
) -> None:
    assert first_shapes(graph, len(expected)) == expected


def test_static_shapes_leave_no_choice() -> None:
    assert first_shapes(template(x=[1, 3, 8, 8]), 5) == [{"x": (1, 3, 8, 8)}]


def test_given_shapes_decide_their_symbols() -> None:
    graph = template(x=["n", "t", 8], z=["n", "t"])

    (specs,) = shape_candidates(graph, {"x": (1, 77, 8)})

    assert specs["z"].shape == (1, 77)


@pytest.mark.parametrize(
    "given", [{"x": (1, 77)}, {"x": (1, 77, 9)}, {"q": (1,)}, {"x": (1, 7, 8), "z": (1, 8)}]
)
def test_given_shapes_must_fit_the_model(given: Mapping[str, tuple[int, ...]]) -> None:
    graph = template(x=["n", "t", 8], z=["n", "t"])

    with pytest.raises(ModelImportError, match="example shape"):
        list(shape_candidates(graph, given))


class Picky:
    """A model that takes one width only, and only indices below 2."""

    name = "a picky reference"
    file: Path | None = None
    words: Words = NO_WORDS

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if inputs["x"].shape[1] != 512:
            raise ReferenceFailed("width is not 512")
        if inputs["x"].max() > 1:
            raise ReferenceFailed("index out of range")
        return {"y": inputs["x"]}

    reordered = run


def test_shapes_and_ranges_are_tried_until_the_reference_runs() -> None:
    found = find_example(Trials(template("INT64", x=["n", "s"]), {}, Picky(), 1 << 20), {})

    assert found.specs["x"].shape == (1, 512)
    assert found.integers == ({"x": 2},)


def test_an_extent_that_the_operators_state_is_tried_where_the_file_leaves_it_open() -> None:
    baked = Operator("split", "braid.reshape", ("x",), ("r",), {"shape": [37, -1, 4]})
    graph = replace(template(x=["n", "t", 4]), operators=(baked,))

    shapes = [specs["x"].shape for specs in shape_candidates(graph, {})]

    assert shapes[0] == (1, 128, 4)
    assert shapes[-2:] == [(1, 37, 4), (1, 4, 4)]


def test_extents_that_operators_state_take_no_turn_from_likely_ones() -> None:
    graph = template("INT64", a=["n", "t"], b=["n", "u"], c=["n", "v"])
    baked = Operator("split", "braid.reshape", ("a",), ("r",), {"shape": [12, 37, -1, 48]})

    likely = first_shapes(graph, 400)
    tried = first_shapes(replace(graph, operators=(baked,)), 400)

    assert len(likely) == 6**3
    assert all(shapes in tried for shapes in likely)


def test_the_reasons_are_given_when_nothing_runs() -> None:
    with pytest.raises(ModelImportError, match=r"--input-shape x=1,7,T.*not 512"):
        find_example(Trials(template("INT64", x=["n", 7, "t"]), {}, Picky(), 1 << 20), {})


def test_drawing_is_repeatable_and_replaces_the_batch() -> None:
    example = Example({"x": TensorType("FP32", (1, 4))}, {})

    first, again = example.draw(3, seed=5), example.draw(3, seed=5)

    assert first["x"].shape == (3, 4)
    assert torch.equal(first["x"], again["x"])


def test_memory_counts_what_is_alive_at_once() -> None:
    spec = TensorType("FP32", (1 << 20,))  # 4 MiB
    chain = tuple(Operator(f"relu{i}", "aten.relu", (f"v{i}",), (f"v{i + 1}",)) for i in range(10))
    specs = {op.outputs[0]: spec for op in chain}
    graph = OpGraph("chain", {"v0": spec}, {"y": "v10"}, {}, chain, specs)

    check_memory(graph, 8 << 20)
    with pytest.raises(InvalidRequest, match="relu1"):
        check_memory(graph, 7 << 20)
