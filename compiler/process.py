"""The bench of a CPU as a process: a device worker that searches, too.

    SearchPlans ──> SearchThread ──question──> latencies that are known, or measured here
                         │                          └── SearchProgress: a batch, now and then
                         └──plans──> SearchResult

So a question of the planner crosses no border between processes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, cast

from braid.compiler.device import ATTEMPTS
from braid.compiler.planner_messages import PlansFound, StageQuery, encode
from braid.compiler.planning import find_plans
from braid.compiler.search_thread import SearchThread
from braid.compiler.stages import StageLatencies, stage_request
from braid.core.errors import BraidError, DeviceLost, ImpossibleLatency
from braid.core.measurement import StageLatency
from braid.engine.link.messages import (
    DescribeProgram,
    MeasureParts,
    MeasureStage,
    PartMeasurement,
    PartMeasurements,
    ProgramDescription,
    SearchPlans,
    SearchProgress,
    SearchResult,
)
from braid.engine.runtime.memory import leaves_interpreter_unsound
from braid.engine.runtime.priority import process_gives_way
from braid.engine.worker.process.main import arguments_of_worker, serve_link
from braid.scheduler.options import PlannerSettings

if TYPE_CHECKING:
    from braid.engine.worker.loop import Worker
    from braid.engine.worker.measuring.measurements import Task

log = logging.getLogger("braid.planner")

_Step = SearchProgress | float | None

BATCH_S = 0.1
"""Measurements are handed over this often: that much is measured again after a crash."""


def main() -> None:
    arguments = arguments_of_worker()
    options = json.loads(arguments.options)
    if options.get("gives_way"):
        process_gives_way()
    # Before threads are pinned: the search may run on any core of the device.
    cores = options.get("cores") or os.sched_getaffinity(0)
    serve_link(arguments, lambda worker: answer_searches(worker, cores))


def answer_searches(worker: Worker, cores: Collection[int]) -> None:
    """Let a worker answer ``SearchPlans``; searches may run on ``cores``."""
    worker.measurements[SearchPlans] = lambda request: _Search(worker, request, cores).run()


class _Search:
    """One search of a worker, whose questions it answers by measuring."""

    def __init__(self, worker: Worker, request: SearchPlans, cores: Collection[int]) -> None:
        self._worker = worker
        self._request = request
        self._cores = cores
        self._latencies = StageLatencies(request.program.precision, json.loads(request.cached_us))
        self._new: dict[str, StageLatency] = {}  # not handed over yet
        self._new_s: list[float] = []  # that each stage took which was measured since
        self._told = 0, 0  # reused, learned
        self._told_at = float("-inf")
        self._done = self._total = 0  # latencies of the first question

    def run(self) -> Task:
        """Search, and measure what is asked for; yields progress."""
        request = self._request
        described = self._worker.handlers[DescribeProgram](DescribeProgram(request.program))
        graph = cast(ProgramDescription, described).graph
        settings = PlannerSettings.parse(request.planner)
        search = partial(find_plans, graph, settings, request.facts)
        with SearchThread(search, request.memory_bytes, request.seconds, self._cores) as thread:
            is_first = True
            while thread.plans is None:
                question = thread.next_question()
                if question is None:
                    yield self._due()
                    continue
                thread.answer((yield from self._answers(question, is_first=is_first)))
                is_first, self._total = False, 0
        yield self._progress()
        return SearchResult(encode(PlansFound(tuple(thread.plans))).decode())

    def _answers(
        self, question: Sequence[StageQuery], *, is_first: bool
    ) -> Generator[_Step, None, list[float]]:
        """Latencies in microseconds, in the order of the question."""
        if any(query.parts for query in question):
            return (yield from self._of_parts(question))
        latencies, latencies_us = self._latencies, list[float]()
        fresh = latencies.to_measure(question)
        for query, is_fresh in zip(question, fresh, strict=True):
            if is_first:  # all that follow depend on answers
                self._done, self._total = len(latencies_us), len(question)
            yield self._due()
            latency_us = None if is_fresh else latencies.known_us(latencies.name(query))
            if latency_us is None:
                began = monotonic()
                timing = yield from self._measured(query)
                name = latencies.name(query)
                self._new[name] = latencies.learn(name, timing)
                self._new_s.append(monotonic() - began)
                latency_us = timing.latency_us
            latencies_us.append(latency_us)
        return latencies_us

    def _of_parts(self, question: Sequence[StageQuery]) -> Generator[_Step, None, list[float]]:
        """Latencies of parts in microseconds; infinite where one is refused, which is not kept.

        Another version of Braid may cut it otherwise.
        """
        latencies = self._latencies
        names = [latencies.name(query) for query in question]
        missing = [query for query in question if latencies.known_us(latencies.name(query)) is None]
        if missing:
            yield self._progress(in_parts=True)
            request = MeasureParts(self._request.program, tuple(query.parts for query in missing))
            for query, outcome in zip(missing, (yield from self._outcomes(request)), strict=True):
                if outcome.latency_us is not None:
                    timing, name = StageLatency(outcome.latency_us, 0.0, 1), latencies.name(query)
                    self._new[name] = latencies.learn(name, timing)
                if outcome.problem:
                    engines = sorted({part.engine for part in query.parts})
                    facts = {"engines": engines, "units": len(query.parts[0].units)}
                    log.info("a part is refused: %s", outcome.problem, extra=facts)
            yield self._progress()
        known_us = map(latencies.known_us, names)
        return [inf if latency_us is None else latency_us for latency_us in known_us]

    def _outcomes(self, request: MeasureParts) -> Generator[_Step, None, Sequence[PartMeasurement]]:
        """Measure parts; what fails costs the plans that have some, and no other."""
        try:
            reply = yield from self._worker.measurements[MeasureParts](request)
            return cast(PartMeasurements, reply).stages
        except DeviceLost:
            raise
        except Exception as error:
            if leaves_interpreter_unsound(error):
                raise
            is_usual = isinstance(error, BraidError)
            log.warning("no parts are measured: %s", error, exc_info=not is_usual)
            return [PartMeasurement()] * len(request.stages)

    def _measured(self, query: StageQuery) -> Generator[_Step, None, StageLatency]:
        """Measure a stage, again as long as its latency cannot be; ``ATTEMPTS`` times at most."""
        measure = self._worker.measurements[MeasureStage]
        request = stage_request(self._request.program, query)
        for _ in range(ATTEMPTS - 1):
            with suppress(ImpossibleLatency):
                return cast(StageLatency, (yield from measure(request)))
        return cast(StageLatency, (yield from measure(request)))

    def _due(self) -> SearchProgress | None:
        return self._progress() if monotonic() >= self._told_at + BATCH_S else None

    def _progress(self, *, in_parts: bool = False) -> SearchProgress:
        """What happened since it was told last, with the measurements of that time."""
        latencies, new, seconds = self._latencies, self._new, tuple(self._new_s)
        counts = latencies.reused, latencies.learned
        reused, learned = (now - told for now, told in zip(counts, self._told, strict=True))
        self._new, self._new_s, self._told, self._told_at = {}, [], counts, monotonic()
        return SearchProgress(self._done, self._total, seconds, reused, learned, new, in_parts)


if __name__ == "__main__":
    main()
