"""One drawn model: the importer's lowering, passes and executor against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import torch
from hypothesis import reject

from braid.core.errors import BraidError
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.verification.verify import relative_error
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.passes import run_passes
from tests.engine.cpu.executors import answered

TOLERANCE = 2e-4
_NUDGE = 1e-6  # relative; what moves outputs further than this hides no error
_MARGIN = 50.0
_TINY = 1e-6

Arrays = Mapping[str, np.ndarray]


def disagreement(model: onnx.ModelProto, executor: CpuExecutor, seed: int = 0) -> str:
    """Where the import differs from ONNX Runtime; "" if nowhere."""
    session = _session(model)
    inputs = _drawn(session, seed)
    try:
        expected = _run(session, inputs)
        nudged = _run(session, {name: array * (1 + _NUDGE) for name, array in inputs.items()})
    except Exception:  # ONNX Runtime lacks this form of the operator
        reject()
    if not all(np.isfinite(array).all() for array in expected.values()):
        reject()  # what becomes of NaN is nobody's promise
    try:
        outputs = _through_braid(model, inputs, executor)
    except BraidError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised: {type(error).__name__}: {error}"
    for name, wanted in expected.items():
        if name not in outputs:
            return f"output {name} is missing"
        ours, theirs = outputs[name], torch.from_numpy(np.asarray(wanted))
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return (
                f"{name} is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
            )
        moved = relative_error(theirs, torch.from_numpy(np.asarray(nudged[name])))
        off = _off(theirs, ours)
        if not off <= TOLERANCE + _MARGIN * moved and moved < TOLERANCE:
            return f"{name} has a relative error of {off:.3g} (a nudge moves it by {moved:.1g})"
    return ""


def _off(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """Relative error; differences too small for single precision beside 1 do not count.

    ONNX Runtime's recurrent layers, for one, give 0 where the result is 1e-9.
    """
    if theirs.is_floating_point() and torch.allclose(ours, theirs, rtol=0, atol=_TINY):
        return 0.0
    return relative_error(theirs, ours)


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options)
    except Exception:  # it lacks this operator, or says the drawing is no model
        reject()


def _drawn(session: onnxruntime.InferenceSession, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        value.name: random.standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }


def _run(session: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _through_braid(
    model: onnx.ModelProto, inputs: Arrays, executor: CpuExecutor
) -> Mapping[str, torch.Tensor]:
    template, weights = run_passes(*lower(prepare(model)))
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode():
        return answered(template, weights, tensors, executor)
