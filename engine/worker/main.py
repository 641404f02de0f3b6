"""The device worker process: one thread that owns the device and serves one link.

    loop:  messages waiting? ──yes──> inference first, then everything else in order
                └──no──> one step of the oldest measurement, or sleep until a message comes

A measurement is a generator that yields after each repetition, so a request waits for at most
one repetition. The process ends when the link closes: the front end is gone or wants it gone.
"""

from __future__ import annotations

import argparse
import logging
import mmap
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from core.errors import (
    BraidError,
    DeviceOutOfMemory,
    InvalidArtefact,
    InvalidRequest,
    PreconditionFailed,
    WorkerFault,
)
from core.graph import graph_to_json
from core.plan import plan_from_json
from engine.allocator import keep_freed_memory
from engine.executor.affinity import usable_cpus
from engine.executor.cpu import CpuExecutor
from engine.executor.session import OnnxSession
from engine.ops.dtypes import torch_dtype
from engine.specialise import interpret
from engine.timing.stage_timer import TimerOptions
from engine.worker.device_key import cpu_device_key, software_versions
from engine.worker.frames import BlockingChannel, Message
from engine.worker.layout import Field
from engine.worker.measurements import Measurements, Task, program_of
from engine.worker.models import Executable, ModelTable, output_specs, seeded_inputs, spec_shape
from engine.worker.sessions import SessionTable

log = logging.getLogger("braid.worker")

LINGER_MS = 5
"""For the next request of a queue, before measuring goes on."""

LINGER_STEPS = 9
"""Requests keep measuring waiting for this many times its latest step, at most."""


@dataclass(slots=True)
class _Background:
    """Work for idle moments, and the call that it answers, if any."""

    call: int | None
    task: Task
    told: float = 0.0  # the progress that was reported


class Worker:
    """Everything the process does, on its only thread."""

    def __init__(
        self,
        channel: BlockingChannel,
        arena: mmap.mmap,
        executor: CpuExecutor,
        activation_bytes: int,
        timing_repeats: int,
    ) -> None:
        self._channel = channel
        self._arena = arena
        self._threads = executor.threads
        self._executor = executor
        self._poller = select.poll()
        self._poller.register(channel.fileno(), select.POLLIN)
        self._waiting: deque[Message] = deque()  # received, and not inference
        self._is_closed = False
        self._step_s = 0.0  # the latest step of a measurement
        self._models = ModelTable(self._executor, self._let_inference_go_first)
        self._sessions = SessionTable(self._executor, self._let_inference_go_first)
        self._measurements = Measurements(
            executor,
            self._models,
            self._sessions,
            activation_bytes,
            TimerOptions(timing_repeats),
            self._let_inference_go_first,
        )
        self._background = deque([_Background(None, _warm_up())])
        self._views: dict[tuple[int, int], tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def serve(self) -> None:
        """Answer calls until the link closes."""
        while not self._is_closed:
            idle = not self._background and not self._waiting
            if self._receive(None if idle else 0) and not idle:
                self._linger()
            if self._waiting:
                self._answer(self._waiting.popleft())
            elif self._background and not self._is_closed:
                self._advance()

    def _receive(self, timeout_ms: int | None) -> bool:
        """Answer inference requests that have arrived, keep other messages; whether there were any.

        Also called in the midst of other work, see ``engine.pause``.
        """
        if self._is_closed or not self._poller.poll(timeout_ms):
            return False
        messages = self._channel.receive()
        if messages is None:
            self._is_closed = True
            return False
        infer = [message for message in messages if message["op"] == "infer"]
        self._waiting += [message for message in messages if message["op"] != "infer"]
        for message in infer:
            self._answer(message)
        return bool(infer)

    def _let_inference_go_first(self) -> bool:
        if not self._receive(0):
            return False
        self._linger()
        return True

    def _linger(self) -> None:
        """Answer requests until none has come for a moment.

        The front end sends a batch when it has the answer to the one before. Without the moment,
        each of many waiting requests would wait for a measurement of its own. Under load without
        end, measuring still gets a tenth of the time.
        """
        until = monotonic() + LINGER_STEPS * self._step_s
        while self._receive(LINGER_MS) and monotonic() < until:
            pass

    def _answer(self, message: Message) -> None:
        call = message["id"]
        try:
            if message["op"] in _BACKGROUND:
                task = _BACKGROUND[message["op"]](self._measurements, message)
                self._background.append(_Background(call, task))
                return
            result = _FOREGROUND[message["op"]](self, message)
        except Exception as error:
            self._fail(call, error)
        else:
            self._channel.send({"id": call, "result": result})

    def _advance(self) -> None:
        current = self._background[0]
        began = monotonic()
        try:
            self._tell(current, next(current.task))
        except StopIteration as stop:
            self._background.popleft()
            if current.call is not None:
                self._channel.send({"id": current.call, "result": stop.value})
        except Exception as error:
            self._background.popleft()
            self._fail(current.call, error)
        self._step_s = monotonic() - began

    def _tell(self, current: _Background, fraction: float | None) -> None:
        """Pass on how far a task has come, where it is worth a message."""
        if current.call is not None and fraction is not None and fraction >= current.told + 0.02:
            current.told = fraction
            self._channel.send({"id": current.call, "progress": fraction})

    def _fail(self, call: int | None, error: Exception) -> None:
        known = _as_braid_error(error)
        if isinstance(known, WorkerFault):
            log.error("call %s failed", call, exc_info=error)
        if call is None:
            return
        body = {"type": type(known).__name__, "message": str(known)}
        self._channel.send({"id": call, "error": body})

    # -- foreground -------------------------------------------------------------------------

    def infer(self, message: Message) -> dict[str, Any]:
        """Run executable ``number`` on the slot at ``offset``."""
        start = perf_counter_ns()
        number, offset = message["number"], message["offset"]
        ready = self._models.executable(number)
        inputs, outputs = self._slot_views(number, offset, ready)
        for name, tensor in self._outputs(ready, inputs).items():
            outputs[name].copy_(tensor)
        return {"compute_us": (perf_counter_ns() - start) // 1000}

    def _outputs(self, ready: Executable, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        program = ready.program
        fused = program.needs_finite or ready.session is not None
        if fused and not all(map(_is_finite, inputs.values())):
            return interpret(program.graph, program.constants(), inputs)
        if ready.session is not None:
            try:
                return ready.session.run(inputs)
            except PreconditionFailed:
                log.exception("model %s runs under its plan instead", ready.digest[:12])
        return self._executor.run(program, ready.lanes, inputs)

    def _slot_views(
        self, number: int, offset: int, ready: Executable
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors over the slot's memory; kept, since slots are used again."""
        key = (number, offset)
        if key not in self._views:
            if len(self._views) > 4096:
                self._views.clear()
            layout = ready.layout
            self._views[key] = (
                {name: self._view(field, offset) for name, field in layout.inputs.items()},
                {name: self._view(field, offset) for name, field in layout.outputs.items()},
            )
        return self._views[key]

    def _view(self, field: Field, offset: int) -> Tensor:
        dtype, shape = torch_dtype(field.spec.dtype), spec_shape(field.spec)
        count = field.spec.elements
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._arena, dtype=dtype, count=count, offset=offset + field.offset)
        return flat.reshape(shape)

    def load(self, message: Message) -> dict[str, Any]:
        """Load the artefact at ``path`` under ``digest``."""
        self._models.load(message["digest"], Path(message["path"]))
        return {}

    def unload(self, message: Message) -> dict[str, Any]:
        """Forget ``digest`` and everything prepared for it."""
        self._measurements.forget()
        self._views.clear()
        self._models.unload(message["digest"])
        return {}

    def prepare(self, message: Message) -> dict[str, Any]:
        """Make executable ``number`` for the given shapes and plan; run it once to warm up."""
        program, static = program_of(self._models, message)
        plan, digest = message.get("plan"), message["digest"]
        ready = self._models.prepare(
            message["number"],
            digest,
            program,
            None if plan is None else plan_from_json(plan),
            self._session(digest) if message.get("onnxruntime") else None,
        )
        self._outputs(ready, seeded_inputs(program.graph, static, 0))
        outputs = {name: spec.to_json() for name, spec in output_specs(program.graph).items()}
        return {"outputs": outputs}

    def _session(self, digest: str) -> OnnxSession | None:
        """ONNX Runtime's session of a model, if it can still be had: the plan runs without it."""
        try:
            return self._sessions.session(digest, self._models.model(digest).artefact)
        except (PreconditionFailed, InvalidArtefact):
            log.exception("model %s runs under its plan instead", digest[:12])
            return None

    def release(self, message: Message) -> dict[str, Any]:
        """Forget executable ``number``."""
        number = message["number"]
        self._models.release(number)
        for key in [key for key in self._views if key[0] == number]:
            del self._views[key]
        return {}

    def describe(self, message: Message) -> dict[str, Any]:
        """The static graph for the given shapes; its operators are the schedule units."""
        program, _ = program_of(self._models, message)
        return {"graph": graph_to_json(program.graph)}

    def device(self, _: Message) -> dict[str, Any]:
        """Facts about the device and the software."""
        return {
            "device_key": cpu_device_key(self._threads),
            "threads": self._threads,
            "software": software_versions(),
        }

    def cancel(self, message: Message) -> dict[str, Any]:
        """Drop the measurement that call ``target`` asked for; that call is never answered."""
        kept = [item for item in self._background if item.call != message["target"]]
        self._background = deque(kept)
        self._measurements.forget()
        return {}


_FOREGROUND = {
    name: getattr(Worker, name)
    for name in (
        "infer",
        "load",
        "unload",
        "prepare",
        "release",
        "describe",
        "device",
        "cancel",
    )
}
_BACKGROUND = {name: getattr(Measurements, name) for name in ("facts", "measure", "contest")}


def _warm_up() -> Task:
    """The first operator on a meta tensor loads a second's worth of torch: do it while idle."""
    torch.relu(torch.empty(1, device="meta"))
    yield None
    return {}


def _is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite; may say False for sums that overflow."""
    return not tensor.is_floating_point() or bool(tensor.sum().isfinite())


def _as_braid_error(error: Exception) -> BraidError:
    """What the front end is told: our own errors as they are, torch's by what they mean."""
    if isinstance(error, BraidError):
        return error
    text = str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return DeviceOutOfMemory("the device has no memory left for this request; try fewer rows")
    if isinstance(error, IndexError) or "out of range" in text or "out of bounds" in text:
        return InvalidRequest(
            "the model could not run on these values: an index in an input is out of range"
        )
    return WorkerFault(f"the device worker failed: {type(error).__name__}")


@torch.inference_mode()
def main() -> None:
    """Entry point; the descriptors are inherited from the front end."""
    parser = argparse.ArgumentParser(description="Braid device worker (started by the server)")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--arena-fd", type=int, required=True)
    parser.add_argument("--arena-bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--activation-bytes", type=int, required=True)
    parser.add_argument("--timing-repeats", type=int, required=True)
    parser.add_argument("--pin-threads", action=argparse.BooleanOptionalAction, required=True)
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's business
    cpus = usable_cpus()[: options.threads] if options.pin_threads else ()
    # More threads than cores is the operator's wish; then there is nothing to pin to.
    executor = CpuExecutor(options.threads, cpus if len(cpus) == options.threads else ())
    channel = BlockingChannel(socket.socket(fileno=options.link_fd))
    arena = mmap.mmap(options.arena_fd, options.arena_bytes)
    Worker(channel, arena, executor, options.activation_bytes, options.timing_repeats).serve()


if __name__ == "__main__":
    main()
