"""The node cases of onnx's own backend test: what runs must be right."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from core.errors import InvalidRequest, ModelImportError
from engine.onnx import lower, prepare
from engine.ops.dtypes import spec_of
from engine.specialise import interpret, specialise, static_inputs
from tests.onnx.oracle import Array

EXPLAINED = {
    # The reference divides by a broken output extent (2.4 - 1); ONNX Runtime and torch, from
    # which such models come, by the whole one (2 - 1). So do we.
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
}
# Sums in FP32 where the reference rounds each step to a half type: one or two units apart.
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3}


def cases() -> Iterator[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases overflow on purpose
        yield from collect_testcases(None)


def as_tensor(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def run(model: onnx.ModelProto, arrays: list[Any]) -> list[torch.Tensor]:
    """The outputs, in order."""
    template, weights = lower(prepare(model))
    pairs = zip(template.inputs, arrays, strict=False)
    inputs = {name: as_tensor(np.asarray(array)) for name, array in pairs}
    static_values = {name: inputs[name] for name in static_inputs(template)}
    specs = {name: spec_of(tensor) for name, tensor in inputs.items()}
    graph, constants = specialise(template, weights, specs, static_values)
    return list(interpret(graph, constants, inputs).values())


def agrees(ours: torch.Tensor, expected: Any, rtol: float) -> bool:
    if isinstance(expected, onnx.TensorProto):
        expected = onnx.numpy_helper.to_array(expected)
    expected = np.asarray(expected)
    atol = TOLERANCES.get(expected.dtype.name, 1e-6)
    got = (ours.float() if ours.dtype == torch.bfloat16 else ours).numpy()
    wanted = expected.astype(np.float32) if expected.dtype == ml_dtypes.bfloat16 else expected
    same = got.shape == wanted.shape and got.dtype == wanted.dtype
    return same and np.allclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.slow
def test_no_backend_case_is_silently_wrong() -> None:
    passed, wrong = 0, set()
    for case in cases():
        for arrays, expected in case.data_sets:
            try:
                results = run(case.model, arrays)
            except (ModelImportError, InvalidRequest, RuntimeError, TypeError):
                continue  # refused, or an element type that torch or numpy cannot hold
            pairs = zip(results, expected, strict=True)
            if all(agrees(ours, theirs, case.rtol) for ours, theirs in pairs):
                passed += 1
            else:
                wrong.add(case.name)

    assert wrong == EXPLAINED
    assert passed >= 1450
