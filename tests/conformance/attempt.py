"""One case: imported as an upload is, run in parts or whole, compared with what onnx expects."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from braid.core.errors import BraidError
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.upload.onnx_file import parse_model
from braid.engine.importer.upload.whole_model import as_one_unit
from braid.engine.importer.verification.reference import open_reference
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.old_operators import is_old, raised
from braid.engine.onnx.plain import make_plain
from braid.engine.onnx.prepare import prepare
from braid.engine.ops.dtypes import array_of, tensor_of
from braid.engine.ops.whole import run_named
from braid.engine.passes import run_passes
from tests.conformance.cases import Case
from tests.conformance.results import Result, Verdict
from tests.engine.cpu.executors import answered

Array = NDArray[Any]

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


Run = Callable[[Sequence[Any]], Sequence[Array]]  # from the inputs of a case to the outputs


def _attempt(case: Case, executor: CpuExecutor) -> tuple[Verdict, str]:
    model = parse_model(case.model)
    make_plain(model, {})
    newer = raised(model) if is_old(model) else model
    try:
        wrong = _differences(case, _in_parts(newer, executor))
        return (Verdict.WRONG if wrong else Verdict.PASSED), wrong
    except BraidError as refusal:
        with suppress(BraidError, _NoTensor):
            if not _differences(case, _whole(model)):
                return Verdict.WHOLE, str(refusal)
        raise


def _in_parts(model: onnx.ModelProto, executor: CpuExecutor) -> Run:
    template, weights = run_passes(*lower(prepare(model)))

    def run(arrays: Sequence[Any]) -> Sequence[Array]:
        inputs = {n: as_tensor(x) for n, x in zip(template.inputs, arrays, strict=False)}
        return list(map(array_of, answered(template, weights, inputs, executor).values()))

    return run


def _whole(model: onnx.ModelProto) -> Run:
    with TemporaryDirectory() as folder:
        upload = Path(folder) / "upload"
        upload.write_bytes(model.SerializeToString())
        graph, constants, _ = as_one_unit(model, (), lambda: open_reference(upload), {})

    def run(arrays: Sequence[Any]) -> Sequence[Array]:
        feeds = dict(zip(graph.inputs, map(_as_array, arrays), strict=False))
        return [array for array, _ in run_named(graph, constants, feeds).values()]

    return run


def as_tensor(array: Any) -> torch.Tensor:
    """A numpy array (or TensorProto) as a tensor.

    Raises:
        _NoTensor: torch has no such thing.
    """
    array = np.array(_as_array(array), order="C")
    try:
        return tensor_of(array)
    except TypeError as error:
        raise _NoTensor(f"element type {array.dtype}") from error


def _as_array(value: Any) -> NDArray[Any]:
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, list | tuple | onnx.TypeProto | onnx.SequenceProto) or value is None:
        raise _NoTensor("a sequence or an optional value")
    return np.asarray(value)


def _differences(case: Case, run: Run) -> str:
    """Where outputs are not what onnx expects; "" if nowhere."""
    found = (_difference(run(arrays), expected, case) for arrays, expected in case.data_sets)
    return next(filter(None, found), "")


def _difference(results: Sequence[Array], expected: Sequence[Any], case: Case) -> str:
    if len(results) != len(expected):
        return f"{len(results)} outputs, expected {len(expected)}"
    for index, (got, wanted) in enumerate(zip(results, map(_as_array, expected), strict=True)):
        atol = max(case.atol, _HALF_ATOL.get(wanted.dtype.name, 1e-6))
        is_text = wanted.dtype.kind in "OU"
        if got.shape != wanted.shape or (got.dtype != wanted.dtype and not is_text):
            return (
                f"output {index} is {got.dtype}{list(got.shape)}, "
                f"expected {wanted.dtype}{list(wanted.shape)}"
            )
        if is_text:
            if got.tolist() != wanted.tolist():
                return f"output {index} is another text"
            continue
        if wanted.dtype == ml_dtypes.bfloat16:
            got, wanted = got.astype(np.float32), wanted.astype(np.float32)
        if not np.allclose(got, wanted, rtol=case.rtol, atol=atol, equal_nan=True):
            with np.errstate(all="ignore"):
                error = np.nanmax(np.abs(got.astype(np.float64) - wanted.astype(np.float64)))
            return f"output {index} differs by up to {error if math.isfinite(error) else 'inf'}"
    return ""
