"""One case: imported as an upload is, run by the CPU executor, compared with what onnx expects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from braid.core.errors import BraidError
from braid.core.plan import sequential_plan
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.lanes import lay_out
from braid.engine.importer.upload.onnx_file import parse_model
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.old_operators import is_old, raised
from braid.engine.onnx.plain import make_plain
from braid.engine.onnx.prepare import prepare
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import specialise, static_inputs
from braid.engine.program.kernel import PackedWeights
from tests.conformance.cases import Case
from tests.conformance.results import Result, Verdict

# Sums in FP32 where the reference rounds each step to a half type: one or two units apart.
_HALF_ATOL = {"float16": 1e-3, "bfloat16": 8e-3}


def attempt(case: Case, executor: CpuExecutor) -> Result:
    """Import and run one case."""
    try:
        verdict, reason = _attempt(case, executor)
    except (BraidError, _NoTensor) as error:
        verdict, reason = Verdict.REFUSED, str(error)
    except Exception as error:
        verdict, reason = Verdict.FAILED, f"{type(error).__name__}: {error}"
    return Result(case.name, case.kind, case.operator, verdict, reason.partition("\n")[0][:300])


class _NoTensor(Exception):
    """An input or output is a sequence, an optional, a string or of a type that Braid has not."""


def _attempt(case: Case, executor: CpuExecutor) -> tuple[Verdict, str]:
    model = parse_model(case.model)
    make_plain(model, {})
    newer = raised(model) if is_old(model) else model
    template, weights = run_passes(*lower(prepare(newer)))
    for arrays, expected in case.data_sets:
        names = [name for name, _ in zip(template.inputs, arrays, strict=False)]
        inputs = dict(zip(names, map(as_tensor, arrays), strict=False))
        static = {name: inputs[name] for name in static_inputs(template)}
        specs = {name: spec_of(tensor) for name, tensor in inputs.items()}
        program = bind_on_cpu(
            *specialise(template, weights, specs, static), PackedWeights(), executor.threads
        )
        plan = sequential_plan(len(program.units))
        results = executor.run(program, LanePlan(lay_out(program, plan, executor.threads)), inputs)
        wrong = _differences(list(results.values()), expected, case)
        if wrong:
            return Verdict.WRONG, wrong
    return Verdict.PASSED, ""


def as_tensor(array: Any) -> torch.Tensor:
    """A numpy array (or TensorProto) as a tensor.

    Raises:
        _NoTensor: torch has no such thing.
    """
    array = _as_array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(array))
    except TypeError as error:
        raise _NoTensor(f"element type {array.dtype}") from error


def _as_array(value: Any) -> NDArray[Any]:
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, list | tuple | onnx.TypeProto | onnx.SequenceProto) or value is None:
        raise _NoTensor("a sequence or an optional value")
    return np.asarray(value)


def _differences(results: Sequence[torch.Tensor], expected: Sequence[Any], case: Case) -> str:
    """Where our outputs are not what onnx expects; "" if nowhere."""
    if len(results) != len(expected):
        return f"{len(results)} outputs, expected {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(results, map(_as_array, expected), strict=True)):
        atol = max(case.atol, _HALF_ATOL.get(theirs.dtype.name, 1e-6))
        half = theirs.dtype == ml_dtypes.bfloat16
        got = (ours.float() if ours.dtype == torch.bfloat16 else ours).numpy()
        wanted = theirs.astype(np.float32) if half else theirs
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return (
                f"output {index} is {got.dtype}{list(got.shape)}, "
                f"expected {wanted.dtype}{list(wanted.shape)}"
            )
        if not np.allclose(got, wanted, rtol=case.rtol, atol=atol, equal_nan=True):
            with np.errstate(all="ignore"):
                error = np.nanmax(np.abs(got.astype(np.float64) - wanted.astype(np.float64)))
            return f"output {index} differs by up to {error if math.isfinite(error) else 'inf'}"
    return ""
