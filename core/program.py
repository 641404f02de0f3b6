"""Names of what a device runs: a program, and a plan of it.

A *program* is a model bound to input shapes: its static graph with a kernel for each unit. A worker
makes it when it is first asked for and keeps it by its key.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from braid.core.plan import StreamPlan
from braid.core.precision import FP32
from braid.core.schedule import SEQUENTIAL, Schedule
from braid.core.tensor import TensorType

Choices = tuple[tuple[str, str], ...]
"""Kernel signatures with the variant to run, sorted; other units run on their usual kernel."""

StaticContent = tuple[tuple[str, bytes], ...]
"""Static inputs, small integers that decide shapes or branches: name and raw little-endian bytes,
in the model's order."""

_STRUCT_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "INT8": "b",
    "UINT16": "H",
    "INT16": "h",
    "UINT32": "I",
    "INT32": "i",
    "UINT64": "Q",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """Everything that a program depends on; equal keys mean the same program."""

    digest: str  # SHA-256 of the uploaded file, hex
    inputs: tuple[tuple[str, TensorType], ...]  # static specs, the batch included, in order
    static: StaticContent = ()
    precision: str = FP32
    choices: Choices = ()
    quantisation: str = ""  # text of a ``Quantisation``, in INT8
    is_loose: bool = False  # in ONNX Runtime as one operator, with outputs of any extents

    @property
    def specs(self) -> dict[str, TensorType]:
        return dict(self.inputs)


@dataclass(frozen=True, slots=True)
class PlanToRun:
    """A program with the plan that it runs under."""

    program: ProgramKey
    plan: StreamPlan | None = None  # None: sequential
    plan_id: str = SEQUENTIAL  # as Infer answers
    runtime: str = ""  # of RUNTIMES: runs the model, and the plan only if that cannot
    side_by_side: int = 1  # runs at once, each on its part of the device's threads
    any_shape: bool = False  # in ``runtime``, and each run says its program; this one is tried


@dataclass(frozen=True, slots=True)
class PlansToCompare:
    """Ways to run one program, for a comparison: its plans, then runtimes with the whole model."""

    program: ProgramKey
    plans: tuple[StreamPlan, ...]  # the first one is sequential
    runtimes: tuple[str, ...]  # of RUNTIMES
    tolerance: float  # of outputs, relative to the largest element; what errs more runs once


@dataclass(frozen=True, slots=True)
class UnitKernels:
    """Units of equal kind, shapes and attributes, and the kernels that can run each of them."""

    signature: str
    units: tuple[int, ...]  # of the static graph, ascending
    variants: tuple[str, ...]  # several; the one that is usually fastest first


def sorted_choices(choices: Mapping[str, str]) -> Choices:
    return tuple(sorted(choices.items()))


def to_run(program: ProgramKey, schedule: Schedule | None) -> PlanToRun:
    """A program in FP32 on its usual kernels, sequentially or as a schedule has it."""
    if schedule is None:
        return PlanToRun(program)
    program = as_scheduled(program, schedule)
    return PlanToRun(program, schedule.plan, schedule.plan_id, schedule.runtime)


def as_scheduled(program: ProgramKey, schedule: Schedule) -> ProgramKey:
    """The program that a schedule's plan is of, from the same in FP32 on its usual kernels."""
    choices = sorted_choices(schedule.provenance.choices)
    return replace(
        program,
        precision=schedule.precision,
        choices=choices,
        quantisation=schedule.quantisation,
    )


def static_content(values: Mapping[str, Any], inputs: Mapping[str, TensorType]) -> StaticContent:
    """Raw content of static inputs, from nested lists of numbers by input name."""
    return tuple(
        (name, _raw(inputs[name].dtype, values[name])) for name in inputs if name in values
    )


def _raw(dtype: str, value: Any) -> bytes:
    numbers = list(_flat(value))
    return struct.pack(f"<{len(numbers)}{_STRUCT_CODES[dtype]}", *numbers)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
