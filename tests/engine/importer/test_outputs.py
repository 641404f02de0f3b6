"""Symbolic specs of outputs, on models of one node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import NodeProto, helper

from braid.engine.importer.verification.output_shapes import with_output_specs
from tests.engine.importer.test_batch import studied
from tests.models.graphs import model


def output_shape(node: NodeProto, shape: list[Any], folder: Path) -> list[Any]:
    """Shape of output ``y`` of a model with one node from ``x``."""
    study = studied(model([node], {}, shape=shape), folder)
    template = with_output_specs(study.subject, study.batch)
    return list(template.spec(template.outputs["y"]).shape)


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        (helper.make_node("Relu", ["x"], ["y"]), ["n", 3, "h", "w"], ["batch", 3, "h", "w"]),
        (
            helper.make_node("Transpose", ["x"], ["y"], perm=[3, 0, 1, 2]),
            ["n", 3, "h", "w"],
            ["w", "batch", 3, "h"],
        ),
        (
            helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
            ["n", 3, "h", 8],
            ["batch", 3, "y_2", 4],
        ),
        (
            helper.make_node("GlobalAveragePool", ["x"], ["y"]),
            ["n", 3, "h", "w"],
            ["batch", 3, 1, 1],
        ),
        (helper.make_node("Relu", ["x"], ["y"]), [1, 3, 4, 4], ["batch", 3, 4, 4]),
    ],
)
def test_an_extent_has_the_name_of_what_it_follows(
    node: NodeProto, shape: list[Any], expected: list[Any], tmp_path: Path
) -> None:
    assert output_shape(node, shape, tmp_path) == expected
