"""Files with rare but valid parts, from registration to answers of other lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.engine.importer.running import Shapes
from tests.engine.importer.test_rare_parts import SPARSE, over_samples, without_a_shape
from tests.service.server_process import ServerProcess

OLD = onnx.parser.parse_model(
    """<ir_version: 3, opset_import: ["" : 5]>
    old (float[n, 3] x) => (float[n, 6] y)
    { h = Softmax (x)
      y = Concat <axis = 1> (h, x) }"""
)
NO_SHAPES: Shapes = {}
ROWS: dict[str, tuple[onnx.ModelProto, str, Shapes, list[tuple[int, ...]]]] = {
    "sparse": (SPARSE["flat indices"], "x", NO_SHAPES, [(1, 3), (5, 3)]),
    "shapeless": (without_a_shape("Relu", "Exp"), "x", {"x": (1, 4)}, [(1, 4), (2, 3)]),
    "audio": (over_samples(160, 1), "audio", NO_SHAPES, [(1600,), (320,)]),
    "old": (OLD, "x", NO_SHAPES, [(1, 3), (4, 3)]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "old" else [pytest.mark.slow]) for n in ROWS]
)
def test_it_is_registered_and_answers_as_onnxruntime(
    shared: ServerProcess, name: str, tmp_path: Path
) -> None:
    made, entry, shapes, sizes = ROWS[name]
    (path := tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    session = onnxruntime.InferenceSession(path)
    with shared.client() as client:
        client.register(name, path, planner="sequential", input_shapes=shapes, wait=True)
        for size in sizes:
            feed = {entry: np.random.default_rng(1).standard_normal(size).astype(np.float32)}
            (found,) = client.infer(name, feed).outputs.values()
            np.testing.assert_allclose(found, session.run(None, feed)[0], rtol=1e-4, atol=1e-4)
        client.delete(name)
