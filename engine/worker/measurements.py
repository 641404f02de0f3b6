"""What a worker measures when nobody wants an inference: facts, stages, whole models.

Each measurement is a task: a generator that yields after each repetition, so that a request waits
for one repetition at most.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from braid.core.errors import DeviceOutOfMemory, InvalidArtefact, PreconditionFailed
from braid.core.json_form import from_json, to_json
from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import plan_from_json
from braid.core.precision import FP32
from braid.core.program import ProgramKey
from braid.engine.device import AskedStage, Backend, Prepared, Task, Whole
from braid.engine.link.frames import Message
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Program
from braid.engine.runtime.priority import thread_gives_way
from braid.engine.runtime.yielding import YieldToRequests, in_thread
from braid.engine.timing.comparison import ComparisonOptions, compare
from braid.engine.timing.contenders import TimedContender
from braid.engine.timing.runs import TimedRun, timed_aside
from braid.engine.worker.models import ModelTable, seeded_inputs, static_tensors


class Measurements:
    """Everything that is measured on one device, and what is kept from one to the next."""

    def __init__(self, backend: Backend, models: ModelTable, pause: YieldToRequests) -> None:
        self._backend = backend
        self._models = models
        self._pause = pause
        self._overheads: StageOverheads | None = None

    def forget(self) -> None:
        """Free what was kept for the next measurement."""
        self._backend.forget()

    def facts(self, message: Message) -> Task:
        """What planners may know of the device and the units of a static graph."""
        program = self._models.program(program_key_of(message))
        if self._overheads is None:
            self._overheads = yield from self._backend.overheads()
        graph = program.graph
        profiles = tuple(self._backend.profile(unit, graph) for unit in graph.operators)
        merges = tuple(map(tuple, merge_groups(graph)))
        return to_json(DeviceFacts(self._overheads, profiles, merges, self._backend.threads))

    def kernels(self, message: Message) -> Task:
        """One unit of each kernel signature that has several variants, the usual one first."""
        program = self._models.program(program_key_of(message))
        source, found = program.binding.source, dict[str, dict[str, Any]]()
        for unit, operator in enumerate(program.graph.operators):
            signature = source.signature(operator, program.graph)
            if signature not in found:
                variants = [kernel.variant for kernel in program.rivals(unit)]
                found[signature] = {"units": [], "signature": signature, "variants": variants}
                yield None
            found[signature]["units"].append(unit)
        return {"kernels": [each for each in found.values() if len(each["variants"]) > 1]}

    def measure(self, message: Message) -> Task:
        """Latency of the stage with ``groups`` and ``strategy``, on ``threads`` (None: all).

        With ``variant``, of the only unit on that kernel.
        """
        key = program_key_of(message)
        program = self._models.program(key)
        stage = AskedStage(
            message["groups"],
            message.get("threads"),
            message.get("strategy", "concurrent"),
            message.get("hopeless_us"),
        )
        if message.get("variant"):
            ((unit,),) = stage.groups
            program = program.with_variant(unit, message["variant"])
        inputs = partial(seeded_inputs, program.graph, static_tensors(key), 0)
        timing = yield from self._backend.measure(program, inputs, stage, self._pause)
        return to_json(timing)

    def compare(self, message: Message) -> Task:
        """``plans``, the first being the baseline, and ONNX Runtime if wanted: numbers, latency."""
        self.forget()
        key = program_key_of(message)
        program = self._models.program(key)
        inputs = seeded_inputs(program.graph, static_tensors(key), 1)
        prepared: list[Prepared] = []
        try:
            contenders = [self._plan_contender(program, p, prepared) for p in message["plans"]]
            if message["onnxruntime"]:
                contenders.append(self._session_contender(key.digest))
            exact = self._models.program(replace(key, precision=FP32))
            reference = self._backend.interpret(exact, inputs, self._pause)
            yield None
            options = ComparisonOptions(tolerance=message["tolerance"])
            results = yield from compare(contenders, inputs, reference, options, self._pause)
        finally:
            for ready in prepared:
                ready.release()
            self.forget()
        return {"contenders": [to_json(result) for result in results]}

    def _plan_contender(
        self, program: Program, plan: dict[str, Any], prepared: list[Prepared]
    ) -> TimedContender:
        """A plan that takes part, unless the device has no room for it."""
        try:
            ready = self._models.ready(program, plan_from_json(plan))
        except DeviceOutOfMemory as error:
            return TimedContender(_absent, problem=str(error))
        prepared.append(ready)
        return self._backend.contender(ready)

    def _session_contender(self, digest: str) -> TimedContender:
        """A session of its own, whose threads give way to requests; one that serves does not."""
        artefact = self._models.model(digest).artefact

        def opened() -> Whole:
            thread_gives_way()
            return self._backend.open_whole(artefact, digest)

        try:
            session = in_thread(opened, self._pause)
        except (PreconditionFailed, InvalidArtefact) as error:
            return TimedContender(_absent, problem=str(error))
        return TimedContender(timed_aside(session.run))


def program_key_of(message: Message) -> ProgramKey:
    """The program that a message is about."""
    return from_json(ProgramKey, message["program"])


def _absent(*_: object) -> TimedRun:
    raise PreconditionFailed("it could not be prepared")
