"""Checks in idle time whether padded requests are answered as they are unpadded."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf

import ml_dtypes  # noqa: F401  # numpy knows bfloat16 by it
import numpy as np
from numpy.typing import NDArray

from braid.core.errors import BraidError
from braid.core.tensor import ARRAY_NAMES
from braid.server.inference.batching.queues import BatchObserver
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import PRIORITY_LEVELS, OutputTensor
from braid.server.inference.routing import QueuedReplica
from braid.server.store.store import Store

log = logging.getLogger("braid.models")

LOOK_S = 30.0
"""Samples are checked, and the store is asked, so often."""


Place = tuple[str, int]


class PaddingChecks:
    """Belongs to the event loop."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[QueuedReplica]],
        observer: Callable[[ModelReplica], BatchObserver],
        quiet: Callable[[], Awaitable[object]],
        store: Store,
        tolerance: float,
    ) -> None:
        """``store`` tells other servers. ``tolerance``: relative to the largest element."""
        self._replicas = replicas
        self._observer = observer
        self._quiet = quiet
        self._store = store
        self._tolerance = tolerance

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
            try:
                await self.follow()
            except BraidError as error:
                log.warning("padding was not looked at", extra={"reason": str(error)})

    async def follow(self) -> None:
        """Store which versions were answered wrongly, and take that from other servers."""
        by_version: dict[Place, list[ModelReplica]] = {}
        for queued in list(self._replicas()):
            replica = queued.replica
            if replica.lengths.axis is not None:
                by_version.setdefault((replica.name, replica.version), []).append(replica)
        for replicas in by_version.values():
            model, store = replicas[0].model, self._store
            stored = await store.call(store.padding_failure, model)
            found = (replica.lengths.failure for replica in replicas)
            failure = stored or next(filter(None, found), "")
            if failure and not stored:
                await store.call(store.refuse_padding, model, failure)
            for replica in replicas:
                if failure and not replica.lengths.failure:
                    replica.forbid_padding(failure)

    async def look(self) -> None:
        for queued in list(self._replicas()):
            if queued.replica.lengths.sample is not None:
                await self._quiet()
                await self._check(queued)

    async def _check(self, queued: QueuedReplica) -> None:
        replica, check = queued.replica, queued.replica.lengths
        sample, check.sample = check.sample, None
        assert sample is not None
        request, answers = replace(sample.request, priority=PRIORITY_LEVELS), []
        for lane in (sample.shape_class, request.shape_class):
            if queued not in self._replicas():  # it has ended meanwhile
                return
            try:
                observer = self._observer(replica)
                answer = await queued.batcher.submit(replica, request, observer, lane=lane)
            except BraidError as error:
                facts = {"model": replica.name, "version": replica.version, "reason": str(error)}
                log.info("padding was not checked", extra=facts)
                return
            answers.append(answer.outputs)
        tolerance = max(self._tolerance, replica.tolerance_at(sample.shape_class))
        check.compared(error_of(*answers), tolerance)
        if check.failure:
            for other in self._replicas():
                if other.replica.model == replica.model:
                    other.replica.forbid_padding(check.failure)
            facts = {"model": replica.name, "version": replica.version, "reason": check.failure}
            log.error("requests are not padded any more", extra=facts)
            with suppress(BraidError):
                await self.follow()


def error_of(padded: Mapping[str, OutputTensor], alone: Mapping[str, OutputTensor]) -> float:
    """Return the largest difference of two answers, relative to the largest element of an output.

    Equal elements that are not finite differ by nothing.
    """
    return max((_error(padded[name], output) for name, output in alone.items()), default=0.0)


def _error(padded: OutputTensor, alone: OutputTensor) -> float:
    if padded.shape != alone.shape:
        return inf
    got, wanted = _numbers(padded), _numbers(alone)
    with np.errstate(invalid="ignore"):
        is_same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        differences = np.where(is_same, 0, got - wanted)
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
    error = float(np.abs(differences).max(initial=0))
    return error / float(largest) if largest else error and inf


def _numbers(tensor: OutputTensor) -> NDArray[np.float64]:
    return np.frombuffer(tensor.data, ARRAY_NAMES[tensor.dtype]).astype(np.float64)
