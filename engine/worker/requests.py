"""Requests that a worker answers at once: about models and executables, and runs."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TypeAlias

import torch
from torch import Tensor

from braid.core.errors import InvalidArtefact, PreconditionFailed
from braid.engine.device import Backend, FinishedRun, PendingRun, Tensors, Whole
from braid.engine.link.messages import (
    Acknowledged,
    DescribeDevice,
    DescribeProgram,
    DeviceDescription,
    ExecutableReady,
    LoadModel,
    PrepareExecutable,
    ProgramDescription,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
)
from braid.engine.link.shared_memory import Field, SlotLayout
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.runtime.threads import on_one_thread
from braid.engine.runtime.yielding import NetClock, YieldToRequests, in_thread, no_pause
from braid.engine.worker.measurements import Measurements
from braid.engine.worker.models import (
    ModelTable,
    ReadyExecutable,
    output_specs,
    seeded_inputs,
    spec_shape,
    static_tensors,
)

log = logging.getLogger("braid.worker")

Views: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Inputs and outputs by name."""

MAX_KEPT = 4096


class SlotViews:
    """Tensors over slots, kept since slots are used again."""

    def __init__(self, arena: mmap.mmap) -> None:
        self._arena = arena
        self._kept: dict[tuple[int, int], Views] = {}  # by executable and offset

    def of(self, number: int, offset: int, layout: SlotLayout) -> Views:
        """Inputs and outputs of executable ``number`` in the slot at ``offset``."""
        key = (number, offset)
        if key not in self._kept:
            if len(self._kept) > MAX_KEPT:
                self._kept.clear()
            self._kept[key] = (
                {name: self._view(field, offset) for name, field in layout.inputs.items()},
                {name: self._view(field, offset) for name, field in layout.outputs.items()},
            )
        return self._kept[key]

    def forget(self, number: int) -> None:
        """Drop the views of one executable."""
        for key in [key for key in self._kept if key[0] == number]:
            del self._kept[key]

    def clear(self) -> None:
        """Drop all views."""
        self._kept.clear()

    def _view(self, field: Field, offset: int) -> Tensor:
        dtype, shape = torch_dtype(field.spec.dtype), spec_shape(field.spec)
        count = field.spec.elements
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._arena, dtype=dtype, count=count, offset=offset + field.offset)
        return flat.reshape(shape)


@dataclass(frozen=True, slots=True)
class RunUnderway:
    """A run that the device has begun."""

    number: int  # of the executable
    began_ns: int
    pending: PendingRun
    outputs: Mapping[str, Tensor]  # where they go
    size_bytes: int  # of the slot


class RequestHandlers:
    """Handlers of requests, one method each, two for a run; used by the device thread only."""

    def __init__(
        self,
        backend: Backend,
        arena: mmap.mmap,
        models: ModelTable,
        measurements: Measurements,
        pause: YieldToRequests,
    ) -> None:
        self._backend = backend
        self._models = models
        self._measurements = measurements
        self._slots = SlotViews(arena)
        self._pause = pause
        self._free_ns = 0  # when the device had done the latest run

    def begin(self, request: RunExecutable) -> RunUnderway:
        """Begin to run an executable on its slot."""
        began_ns = perf_counter_ns()
        number = request.number
        ready = self._models.executable(number)
        inputs, outputs = self._slots.of(number, request.offset, ready.layout)
        pending = self._pending(ready, inputs, outputs)
        return RunUnderway(number, began_ns, pending, outputs, ready.layout.size_bytes)

    def finish(self, run: RunUnderway) -> RunDone:
        """Wait for a run and put its outputs into its slot.

        The time that counts is that since the device had done the run before.
        """
        found = run.pending.finish()
        if found is not run.outputs:
            with on_one_thread(run.size_bytes):
                for name, tensor in found.items():
                    run.outputs[name].copy_(tensor)
        began_ns, self._free_ns = max(run.began_ns, self._free_ns), perf_counter_ns()
        return RunDone((self._free_ns - began_ns) // 1000)

    def _pending(self, ready: ReadyExecutable, inputs: Tensors, outputs: Tensors) -> PendingRun:
        """Begin a run; returns ``outputs`` itself where the run has written them there."""
        program = ready.program
        fused = program.needs_finite or ready.session is not None
        if fused and not _are_finite(ready, inputs):
            return FinishedRun(self._backend.interpret(program, inputs, no_pause))
        if ready.session is not None:
            try:
                if not all(map(Tensor.numel, outputs.values())):  # nothing has no address
                    return FinishedRun(ready.session.run(inputs))
                ready.session.run_into(inputs, outputs)
                return FinishedRun(outputs)
            except PreconditionFailed:
                log.exception("model %s runs under its plan instead", ready.digest[:12])
        return ready.prepared.begin(inputs, outputs)

    def load(self, request: LoadModel) -> Acknowledged:
        """Load an artefact."""
        self._models.load(request.digest, Path(request.path))
        return Acknowledged()

    def unload(self, request: UnloadModel) -> Acknowledged:
        """Forget a model and everything prepared for it."""
        self._measurements.forget()
        self._slots.clear()
        self._models.unload(request.digest)
        return Acknowledged()

    def prepare(self, request: PrepareExecutable) -> ExecutableReady:
        """Make an executable, and run it once to warm up."""
        to_run, key = request.to_run, request.to_run.program
        program = self._models.program(key)
        ready = self._models.prepare(
            request.number,
            key.digest,
            program,
            to_run.plan,
            self._session(key.digest) if to_run.in_onnxruntime else None,
        )
        run_s = self._warm_up(ready, seeded_inputs(program.graph, static_tensors(key), 0))
        return ExecutableReady(output_specs(program.graph), run_s)

    def _warm_up(self, ready: ReadyExecutable, inputs: Mapping[str, Tensor]) -> float:
        """Run for the first time; returns its seconds, without those of requests in between."""
        pause, start_ns = NetClock(self._pause), perf_counter_ns()
        session = ready.session
        if session is not None:
            try:
                in_thread(lambda: session.run(inputs), pause)
            except PreconditionFailed:
                log.exception("model %s runs under its plan instead", ready.digest[:12])
        ready.prepared.run(inputs, pause)
        return pause.net_time(start_ns, perf_counter_ns()).us / 1e6

    def _session(self, digest: str) -> Whole | None:
        """Open ONNX Runtime's session of a model; None if that fails, since the plan can run."""
        try:
            return self._models.session(digest)
        except (PreconditionFailed, InvalidArtefact):
            log.exception("model %s runs under its plan instead", digest[:12])
            return None

    def release(self, request: ReleaseExecutable) -> Acknowledged:
        """Forget an executable."""
        self._models.release(request.number)
        self._slots.forget(request.number)
        return Acknowledged()

    def describe_program(self, request: DescribeProgram) -> ProgramDescription:
        """Describe the static graph of a program; its operators are the schedule units."""
        return ProgramDescription(self._models.program(request.program).graph)

    def describe_device(self, _: DescribeDevice) -> DeviceDescription:
        """Describe the device and its software."""
        return DeviceDescription(
            self._backend.device_key(),
            self._backend.threads,
            tuple(self._backend.precisions),
            self._backend.software(),
        )


def _are_finite(ready: ReadyExecutable, tensors: Tensors) -> bool:
    with on_one_thread(ready.layout.size_bytes):
        return all(map(_is_finite, tensors.values()))


def _is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite; may say False for sums that overflow."""
    return not tensor.is_floating_point() or bool(tensor.sum().isfinite())
