"""Lengths that follow from the requests: chosen in idle time, scheduled by a job.

Replicas learn from there as well that a padded request was answered wrongly (``padding_checks``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from braid.core.errors import BraidError, NotFound
from braid.core.margins import LENGTHS_GAIN
from braid.server.inference.choose_lengths import (
    LEAST_ROWS,
    LatencyUnknown,
    LengthChoice,
    choose_lengths,
    expected_s,
)
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import SeenLengths
from braid.server.store.store import Store

log = logging.getLogger("braid.models")

KEEP_S = 30.0
"""Lengths are stored and looked at so often; a crash forgets those since then."""

Place = tuple[str, int]


class LengthChoices:
    """Chooses lengths to schedule by those of requests. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        replicas: Callable[[], Sequence[ModelReplica]],
        runner: Callable[[], JobRunner],
        quiet: Callable[[], Awaitable[object]],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Look at nothing yet; ``quiet`` returns once requests leave cores."""
        self._store = store
        self._replicas = replicas
        self._runner = runner
        self._quiet = quiet
        self._sleep = sleep
        self._weighed: dict[Place, int] = {}  # rows since the choice, when others were weighed
        self.seen: dict[Place, SeenLengths] = {}
        """Of each version whose requests may be padded, as stored last."""

    async def run(self) -> None:
        """Store lengths, and choose by them in idle time, until cancelled.

        Under requests without end they are stored all the same.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look(self.keep))
            group.create_task(self._look(self.choose))

    async def _look(self, at: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._sleep(KEEP_S)
            try:
                await at()
            except BraidError as error:
                log.warning("lengths were not looked at", extra={"reason": str(error)})

    async def keep(self) -> None:
        """Store what was counted and whether padding was wrong; replicas use what is stored."""
        by_place: dict[Place, list[ModelReplica]] = {}
        for replica in self._replicas():
            if replica.lengths.axis is not None:
                by_place.setdefault((replica.name, replica.version), []).append(replica)
        self.seen = {place: seen for place, seen in self.seen.items() if place in by_place}
        for place, replicas in by_place.items():
            rows = sum((replica.buckets.take_rows() for replica in replicas), Counter[int]())
            model, store = replicas[0].model, self._store
            if rows:
                self.seen[place] = await store.call(store.add_lengths, model, rows)
            else:
                self.seen[place] = await store.call(store.find_lengths, model)
            checks = (replica.padding_check.failure for replica in replicas)
            failure = self.seen[place].padding_failure or next(filter(None, checks), "")
            if failure and not self.seen[place].padding_failure:
                self.seen[place] = await store.call(store.refuse_padding, model, failure)
            for replica in replicas:
                replica.seen_lengths = self.seen[place]
                await replica.use_lengths(self.seen[place].chosen)
                if failure and not replica.padding_check.failure:
                    replica.forbid_padding(failure)

    async def choose(self) -> None:
        """Have other lengths of one version scheduled, where that saves enough."""
        for replica in self._replicas():
            place = (replica.name, replica.version)
            seen = self.seen.get(place)
            if seen is None or not replica.follows_lengths or self._runner().has_jobs:
                continue
            weighed = self._weighed.get(place, 0)
            if not seen.since - (weighed if weighed <= seen.since else 0) >= LEAST_ROWS:
                continue
            await self._quiet()
            self._weighed[place] = seen.since
            choice = await self._better(replica, seen)
            if choice is not None:
                await self._schedule(place, choice)

    async def _better(self, replica: ModelReplica, seen: SeenLengths) -> LengthChoice | None:
        """Return lengths that save enough beside those there are; None: there are none."""
        costs, fixed = replica.buckets.costs, replica.given_lengths
        lengths = {*seen.rows, *fixed, *seen.chosen}
        unpadded_s = {length: costs.unpadded_s(length) for length in lengths}
        planned_s = {length: costs.planned_s(length) for length in lengths}
        most = replica.most_lengths

        def weigh() -> LengthChoice | None:
            now_s = expected_s(seen.rows, unpadded_s.get, planned_s.get, {*fixed, *seen.chosen})
            choice = choose_lengths(seen.rows, unpadded_s.get, planned_s.get, fixed, most)
            return choice if choice.seconds <= now_s * (1 - LENGTHS_GAIN) else None

        try:
            return await asyncio.to_thread(weigh)
        except LatencyUnknown:
            return None

    async def _schedule(self, place: Place, choice: LengthChoice) -> None:
        name, version = place
        facts = {"model": name, "version": version, "lengths": list(choice.lengths)}
        try:
            job = await self._runner().schedule_lengths(name, version, choice.lengths)
        except NotFound:  # it was deleted
            return
        if job is not None:
            self._weighed.pop(place, None)
            log.info("other lengths are scheduled", extra={**facts, "job": job.id})
