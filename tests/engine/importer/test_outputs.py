"""Symbolic specs of outputs, on models of one node."""

from pathlib import Path
from typing import Any

import pytest

from braid.engine.importer.verification.probe import with_output_specs
from tests.engine.importer.running import studied
from tests.models.graphs import from_x


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        ("Relu(x)", "n, 3, h, w", ["batch", 3, "h", "w"]),
        ("Transpose<perm=[3, 0, 1, 2]>(x)", "n, 3, h, w", ["w", "batch", 3, "h"]),
        ("MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)", "n, 3, h, 8", ["batch", 3, "y_2", 4]),
        ("GlobalAveragePool(x)", "n, 3, h, w", ["batch", 3, 1, 1]),
        ("Relu(x)", "1, 3, 4, 4", ["batch", 3, 4, 4]),
    ],
)
def test_an_extent_has_the_name_of_what_it_follows(
    node: str, shape: str, expected: list[Any], tmp_path: Path
) -> None:
    study = studied(from_x(f"y = {node}", shape), tmp_path)

    template = with_output_specs(study.subject, study.batch)
    assert list(template.spec(template.outputs["y"]).shape) == expected
