"""A search that the bench of a device does by itself: it plans, and measures what it asks for.

What is in the cache goes along with the request; what was measured comes back in batches, which are
kept while the bench goes on. A bench that dies loses one batch: the search begins again with the
others, and without parts in engines if it died of one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec import structs

from braid.compiler.planner_messages import PlansFound, decode
from braid.compiler.report import Profiling, Searching, StageMeasured, StagesReused
from braid.compiler.work import Work
from braid.core.errors import Unavailable
from braid.core.measurement import DeviceFacts, StageLatency
from braid.core.program import ProgramKey
from braid.engine.link.messages import SearchPlans, SearchProgress, SearchResult
from braid.scheduler.planners import Planned

log = logging.getLogger("braid.jobs")

MOST_SENT = 1 << 20
"""Latencies that go along with a request, those measured last: about 90 MB of JSON."""


class BenchSearch:
    """One search, over all its tries. Belongs to the event loop."""

    def __init__(self, work: Work, program: ProgramKey, facts: DeviceFacts) -> None:
        self._work = work
        self._program = program
        self._facts = facts
        # What was measured and is not kept yet; an error ends the search, None the keeping.
        self._batches: asyncio.Queue[Mapping[str, StageLatency] | Exception | None]
        self.measured = 0
        self.learned = 0  # of the measured ones, those whose latency was not cached before
        self.reused = 0
        self._is_in_parts = False

    async def plans(self) -> Sequence[Planned]:
        result = await self._work.retry(self._search, lambda: self.learned)
        message = await asyncio.to_thread(decode, result.plans)
        assert isinstance(message, PlansFound)
        return message.planned

    async def _search(self) -> SearchResult:
        work, limits = self._work, self._work.options.limits
        cached_us = await work.cache.all_latencies()
        request = SearchPlans(
            self._program,
            work.imported.options.planner.text,
            self._facts,
            await asyncio.to_thread(json.dumps, _last(cached_us)),
            limits.memory_bytes,
            limits.seconds,
        )
        self._batches, self._is_in_parts = asyncio.Queue(), False
        asking = asyncio.ensure_future(work.device.ask(request, self._heard))
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.wait((asking, keeping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asking.cancel()
            self._batches.put_nowait(None)
            await asyncio.gather(keeping, return_exceptions=True)
            raise
        if not asking.done():  # nothing can be kept any more
            asking.cancel()
        self._batches.put_nowait(None)
        outcomes = await asyncio.gather(keeping, asking, return_exceptions=True)
        for outcome in outcomes:  # what could not be kept comes first
            if isinstance(outcome, Unavailable) and self._is_in_parts:
                log.warning("no plan has parts in engines", extra={"reason": str(outcome)})
                self._facts = structs.replace(self._facts, engines={})
            if isinstance(outcome, BaseException):
                raise outcome
        return asking.result()

    def _heard(self, progress: SearchProgress) -> None:
        """Take what the bench tells; runs where messages are received, so it raises nothing."""
        self.measured += len(progress.measured_s)
        self.learned += progress.learned
        self.reused += progress.reused
        self._is_in_parts = progress.in_parts
        self._batches.put_nowait(progress.latencies)
        try:
            self._report(progress)
        except Exception as error:
            self._batches.put_nowait(error)

    def _report(self, progress: SearchProgress) -> None:
        report = self._work.report
        report(StagesReused(progress.reused))
        for seconds in progress.measured_s:
            report(StageMeasured(seconds))
        is_first = bool(progress.total)
        report(Profiling(progress.done, progress.total) if is_first else Searching(self.measured))

    async def _keep(self) -> None:
        """Keep batches until there is ``None``; raises what ends the search."""
        while (batch := await self._batches.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
            if batch:
                await self._work.cache.keep_latencies(batch)


def _last(latencies_us: Mapping[str, float]) -> dict[str, float]:
    return dict(islice(latencies_us.items(), max(0, len(latencies_us) - MOST_SENT), None))
