"""What a worker measures when nobody wants an inference: facts, stages, whole models.

Each measurement is a task: a generator that yields after each repetition, so that a request waits
for one repetition at most.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from core.errors import InvalidArtefact, PreconditionFailed
from core.plan import plan_from_json
from core.tensor import TensorSpec, spec_from_json
from engine.executor.cpu import CpuExecutor
from engine.executor.program import Program
from engine.executor.work import estimated_needs
from engine.kernels.merge import merge_groups
from engine.ops.dtypes import torch_dtype
from engine.pause import Pause
from engine.specialise import interpret
from engine.timing.activations import Activations
from engine.timing.contest import ContestOptions, Entrant, hold_contest
from engine.timing.overheads import StagePrices, measure_prices
from engine.timing.stage_timer import StageTimer, TimerOptions
from engine.worker.frames import Message
from engine.worker.models import ModelTable, seeded_inputs
from engine.worker.sessions import SessionTable

Task = Generator[float | None, None, dict[str, Any]]
"""Yields whenever a request may go first; a number is the fraction done."""


class Measurements:
    """Everything that is measured on one device, and what is kept from one to the next."""

    def __init__(
        self,
        executor: CpuExecutor,
        models: ModelTable,
        sessions: SessionTable,
        activation_bytes: int,
        timer: TimerOptions,
        pause: Pause,
    ) -> None:
        self._executor = executor
        self._models = models
        self._sessions = sessions
        self._pause = pause
        self._activation_bytes = activation_bytes
        self._timer = StageTimer(executor, timer)
        self._activations: Activations | None = None
        self._prices: StagePrices | None = None

    def forget(self) -> None:
        """Free what was kept for the next measurement."""
        self._activations = None

    def facts(self, message: Message) -> Task:
        """What planners may know of the device and the units of a static graph."""
        program, _ = program_of(self._models, message)
        if self._prices is None:
            self._prices = yield from measure_prices(self._executor)
        needs = [estimated_needs(unit, program.graph) for unit in program.graph.operators]
        prices = self._prices
        return {
            "threads": self._executor.threads,
            "stage_us": prices.stage_us,
            "group_us": prices.group_us,
            "launch_us": prices.launch_us,
            "moved_bytes": [need.moved_bytes for need in needs],
            "memory_bound": [need.memory_bound for need in needs],
            "merge_groups": merge_groups(program.graph),
        }

    def measure(self, message: Message) -> Task:
        """Latency of the stage with ``groups`` and ``strategy``, on ``threads`` (None: all)."""
        program, static = program_of(self._models, message)
        if self._activations is None or self._activations.program is not program:
            self._activations = None  # free before the next ones are made
            yield None
            self._activations = Activations(
                program,
                seeded_inputs(program.graph, static, 0),
                self._executor,
                self._activation_bytes,
                self._pause,
            )
            yield None
        timing = yield from self._timer.measure(
            self._activations,
            message["groups"],
            message.get("threads"),
            message.get("strategy", "concurrent"),
        )
        return {
            "latency_us": timing.latency_us,
            "spread": timing.spread,
            "repeats": timing.repeats,
        }

    def contest(self, message: Message) -> Task:
        """``plans``, the first being the baseline, and ONNX Runtime if wanted: numbers, latency."""
        self.forget()
        program, static = program_of(self._models, message)
        inputs = seeded_inputs(program.graph, static, 1)
        entrants = [self._plan_entrant(program, plan) for plan in message["plans"]]
        if message["onnxruntime"]:
            entrants.append(self._session_entrant(message["digest"]))
        reference = interpret(program.graph, program.constants(), inputs, self._pause)
        yield None
        options = ContestOptions(tolerance=message["tolerance"])
        results = yield from hold_contest(entrants, inputs, reference, options)
        return {"contenders": [asdict(result) for result in results]}

    def _plan_entrant(self, program: Program, plan: dict[str, Any]) -> Entrant:
        layout = self._models.lay_out(program, plan_from_json(plan))
        return Entrant(
            lambda inputs: self._executor.run(program, layout, inputs),
            lambda: layout.arena_bytes or None,
        )

    def _session_entrant(self, digest: str) -> Entrant:
        artefact = self._models.model(digest).artefact
        try:
            session = self._sessions.session(digest, artefact)
        except (PreconditionFailed, InvalidArtefact) as error:
            return Entrant(_absent, problem=str(error))
        return Entrant(session.run)


def program_of(models: ModelTable, message: Message) -> tuple[Program, dict[str, Tensor]]:
    """The bound program that a message is about, and its static inputs."""
    static = {
        name: torch.tensor(value["data"], dtype=torch_dtype(value["dtype"])).reshape(value["shape"])
        for name, value in message.get("static", {}).items()
    }
    inputs: dict[str, TensorSpec] = {
        name: spec_from_json(spec) for name, spec in message["inputs"].items()
    }
    return models.program(message["digest"], inputs, static), static


def _absent(_: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    raise PreconditionFailed("there is no session")
