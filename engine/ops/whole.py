"""Whole ONNX model as one operator, run by ONNX Runtime, where the lowering table lacks one.

The model is a constant of bytes, so it lies in the artefact with the weights. A session is made
when the operator first runs and lives as long as that constant. Runs only in processes that may
die: the importer and the device worker.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from braid.core.allowance import usable_memory_bytes
from braid.core.errors import InvalidRequest
from braid.core.graph import Operator
from braid.engine.ops.dtypes import (
    is_strings,
    strings_array,
    strings_tensor,
    tensor_of,
    torch_dtype,
)
from braid.engine.ops.kinds import op, operator
from braid.engine.ops.value_ranges import refused_values
from braid.engine.runtime.stopping import stoppable_session_run

KIND = "braid.onnxruntime"
RUN_SECONDS = 60.0
"""Limit of a run without a stop signal: a loop over run-time values may never end."""

MOST_BYTES = 16 << 30
"""Limit of all tensors of all sessions together, on any machine."""

_sessions: dict[int, Any] = {}  # id of the model's tensor -> session
_registered = threading.Event()

Extents = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Attributes of ``braid.onnxruntime``; a name in a shape stands for an open extent."""

    names: Sequence[str]  # the model's inputs
    outputs: Sequence[str]
    input_shapes: Sequence[Extents]
    shapes: Sequence[Extents]  # of the outputs, in the names of the inputs' extents
    dtypes: Sequence[str]  # of the outputs
    loops: bool = False  # the importer saw loops; the time of every run is bounded alike
    origins: Sequence[Sequence[str]] = ()  # inputs that decide addresses (refused_values.py)
    longest: int = 0  # bytes of the longest string that is written in the model
    range_by: str = ""  # operator that takes a range of 8 bits from its whole operand, if any does

    def empty_results(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return results without data, their open extents taken from the inputs.

        Raises:
            ValueError: the inputs do not have the declared extents.
        """
        known: dict[int | str, int] = {}
        for tensor, declared in zip(inputs, self.input_shapes, strict=True):
            if len(declared) != tensor.dim():
                raise ValueError(
                    f"an input has {tensor.dim()} axes, the model takes {len(declared)}"
                )
            for name, extent in zip(declared, tensor.shape, strict=True):
                if isinstance(name, int):
                    known[name] = name
                if known.setdefault(name, extent) != extent:
                    raise ValueError(f"an extent is {extent}, the model takes {known[name]}")
        return tuple(
            torch.empty(
                [dim if isinstance(dim, int) else known[dim] for dim in shape],
                dtype=torch_dtype(dtype),
                device="meta",
            )
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    def check(self, results: Sequence[Any], expected: Sequence[Tensor]) -> None:
        """Refuse results of other shapes than were seen when the model was imported.

        Raises:
            InvalidRequest: naming the first such output.
        """
        for name, result, wanted in zip(self.outputs, results, expected, strict=True):
            if result.shape != wanted.shape:
                raise InvalidRequest(
                    f"output {name!r} is {list(result.shape)} for this content, not "
                    f"{list(wanted.shape)} as when the model was imported"
                )


@operator(KIND, whole=WholeModel)
def whole_model(model: Tensor, *inputs: Tensor, whole: WholeModel) -> tuple[Tensor, ...]:
    """Run a model that is stored as bytes.

    Args:
        model: the file, UINT8.
        inputs: one for each of ``whole.names``.
        whole: the operator's attributes.

    Raises:
        InvalidRequest: an operator cannot use the values.
        RunStopped: the run was stopped, or took ``RUN_SECONDS`` without a stop signal.
    """
    return run_whole_model(model, inputs, whole, RUN_SECONDS)


def run_whole_model(
    model: Tensor, inputs: Sequence[Tensor], whole: WholeModel, seconds: float
) -> tuple[Tensor, ...]:
    """Run as ``whole_model`` does, without a stop signal at most for ``seconds``."""
    expected = whole.empty_results(inputs)
    if any(tensor.is_meta for tensor in inputs):
        return expected
    feeds = {name: _array(tensor) for name, tensor in zip(whole.names, inputs, strict=True)}
    results = run_arrays(model, feeds, whole, expected, seconds)
    device = inputs[0].device
    return tuple(_tensor(result).to(device) for result in results)


def run_arrays(
    model: Tensor,
    feeds: Mapping[str, Any],
    whole: WholeModel,
    expected: Sequence[Tensor],
    seconds: float = RUN_SECONDS,
) -> list[Any]:
    """Run on numpy arrays, strings as objects; returns those of ``whole.outputs``.

    ``expected`` are tensors in the shapes of the results; errors are those of ``whole_model``.
    """
    session = _session(model)
    with stoppable_session_run(seconds) as options:
        try:
            results: list[Any] = session.run(list(whole.outputs), feeds, options)
        except Exception as error:  # its exceptions share no base but this
            if (refusal := refused_values(error, whole.origins)) is not None:
                raise refusal from error
            line = str(error).strip().partition("\n")[0]
            raise RuntimeError(f"ONNX Runtime: {line}") from error
    whole.check(results, expected)
    return results


def attributes_of(unit: Operator) -> WholeModel:
    found: WholeModel = op(KIND).bound(unit.attributes).keywords["whole"]  # type: ignore[attr-defined]
    return found


def _array(tensor: Tensor) -> Any:
    return (
        strings_array(tensor) if is_strings(tensor) else tensor.detach().cpu().contiguous().numpy()
    )


def _tensor(result: Any) -> Tensor:
    array = np.array(result, order="C")
    return strings_tensor(array) if array.dtype == object else tensor_of(array)


def _session(model: Tensor) -> Any:
    key = id(model)
    if key not in _sessions:
        _sessions[key] = open_session(model.cpu().numpy().tobytes(), torch.get_num_threads())
        weakref.finalize(model, _sessions.pop, key, None)
    return _sessions[key]


def open_session(model: bytes, threads: int, most_bytes: int = MOST_BYTES) -> Any:
    """Open a session on the CPU without spinning threads; the first one bounds all tensors."""
    import onnxruntime

    _bound_memory(onnxruntime, most_bytes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _bound_memory(onnxruntime: Any, most_bytes: int) -> None:
    """Let all sessions share one arena of at most half the memory there is."""
    if _registered.is_set():
        return
    _registered.set()
    where = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    limits = {"max_mem": min(most_bytes, usable_memory_bytes() // 2), "arena_extend_strategy": 1}
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg(limits))
