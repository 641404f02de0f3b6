"""The trial of one graph: kernels bound to a user's nodes compute what ONNX Runtime computes."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from benchmarks.one_graph.model import ONNXSCRIPT, ORT, store, stored
from benchmarks.one_graph.plan import Plan, compiled
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.functions import find_functions

pytestmark = pytest.mark.skipif(
    find_functions() is None or find_native() is None, reason="no kernels outside the interpreter"
)

# A fire module, an operator without a kernel, and a layer of attention over its pixels.
NETWORK = """<ir_version: 9, opset_import: ["" : 17]>
small (float[batch, 3, 12, 12] image, float[batch, 1, 1, 36] mask) => (float[batch, 36, 32] y) {
  s = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, w0, b0) s1 = Relu (s)
  e1 = Conv (s1, w1, b1) e2 = Relu (e1)
  f1 = Conv <pads = [1, 1, 1, 1]> (s1, w2, b2) f2 = Relu (f1)
  joined = Concat <axis = 1> (e2, f2) c1 = Conv (joined, w3, b3) c2 = Relu (c1)
  bent = Sin (c2) extents = Shape <start = 0, end = 2> (bent) all = Constant <value_ints = [-1]> ()
  flat = Concat <axis = 0> (extents, all) rows = Reshape (bent, flat)
  x = Transpose <perm = [0, 2, 1]> (rows)
  q1 = MatMul (x, wq) q2 = Add (q1, b3) k1 = MatMul (x, wk) k2 = Add (k1, b3)
  v1 = MatMul (x, wv) v2 = Add (b3, v1) heads = Constant <value_ints = [0, 36, 4, 8]> ()
  q3 = Reshape (q2, heads) q4 = Transpose <perm = [0, 2, 1, 3]> (q3)
  k3 = Reshape (k2, heads) k4 = Transpose <perm = [0, 2, 3, 1]> (k3)
  v3 = Reshape (v2, heads) v4 = Transpose <perm = [0, 2, 1, 3]> (v3)
  scale = Constant <value_float = 0.35> () p = MatMul (q4, k4) ps = Mul (p, scale)
  pm = Add (ps, mask) odds = Softmax <axis = -1> (pm) o1 = MatMul (odds, v4)
  o2 = Transpose <perm = [0, 2, 1, 3]> (o1) wide = Constant <value_ints = [0, 36, 32]> ()
  o3 = Reshape (o2, wide) d1 = MatMul (o3, wo) d2 = Add (d1, b3) r = Add (d2, x)
  y = LayerNormalization <axis = -1> (r, b3, b3) }"""
WEIGHTS = {
    "w0": (16, 3, 3, 3),
    "w1": (16, 16, 1, 1),
    "w2": (16, 16, 3, 3),
    "w3": (32, 32, 1, 1),
    "b0": (16,),
    "b1": (16,),
    "b2": (16,),
    "b3": (32,),
    **dict.fromkeys(("wq", "wk", "wv", "wo"), (32, 32)),
}


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("how", [ORT, ONNXSCRIPT])
def test_a_plan_and_its_graph_compute_what_the_model_does(
    tmp_path: Path, how: str, lanes: bool
) -> None:
    rng = np.random.default_rng(0)
    model, file = parser.parse_model(NETWORK), tmp_path / "small.onnx"
    for name, shape in WEIGHTS.items():
        weight = rng.standard_normal(shape, np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, file)
    store(file, tmp_path / "kept")
    kept = stored(tmp_path / "kept")
    feeds = {
        "image": rng.standard_normal((2, 3, 12, 12), np.float32),
        "mask": rng.choice([0.0, -1e4], (2, 1, 1, 36)).astype(np.float32),
    }

    graph = compiled(kept, {"batch": 2}, how)
    plan = Plan(kept, {"batch": 2}, how=how, lanes=lanes)
    outputs = plan.empty_outputs()
    plan.run(feeds, outputs)

    fused = Counter(node.op_type for node in graph.graph.node if node.domain == "braid")
    assert fused == Counter(ConvRelu=3, ConcatConvRelu=1, Attention=1, Linear=3, LinearAdd=1)
    assert sum(unit.region is not None for unit in plan.units) == 2  # Sin, Transpose
    (expected,) = _session(model).run(None, feeds)
    (exported,) = _session(graph).run(None, {**feeds, **kept.weights})
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(exported, expected, rtol=1e-4, atol=1e-4)


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
