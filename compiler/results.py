"""What compilations leave: schedules with their graphs, and measurements of devices.

Results          marks on schedules, in terms of what is stored
   ├─ ResultFiles     result_files.py: files in a folder, of the library and of a single server
   └─ rows of a database that several servers share

Both kinds outlive the models they were made for: equal bytes, or equal stages of another model,
find them again.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ParamSpec, Protocol, TypeVar

from braid.compiler.options import LARGER_SIZES, ModelOptions
from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, load_graph
from braid.core.measurement import StageLatency
from braid.core.quantisation import Quantisation
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Schedule, ScheduleKey, schedule_from_json

log = logging.getLogger("braid.store")


class Results(ABC):
    """Schedules by their keys, and measurements by device and signature. Methods block."""

    @abstractmethod
    def put_schedule(self, schedule: Schedule, graph: OpGraph | None = None) -> None:
        """Store a schedule in place of an earlier one; without a graph, that one's stays."""

    @abstractmethod
    def find_schedule(self, key: ScheduleKey) -> Schedule | None:
        """The schedule with this key, if there is one that can be read."""

    @abstractmethod
    def schedules_of(self, model_digest: str, device_key: str | None = None) -> list[Schedule]:
        """Schedules of a model, by batch size, then age; None: on all devices."""

    @abstractmethod
    def forget_schedule(self, key: ScheduleKey) -> None:
        """Remove a schedule that does not fit its model any more."""

    @abstractmethod
    def put_graph(self, schedule: Schedule, graph: OpGraph) -> None: ...

    @abstractmethod
    def find_graph(self, schedule: Schedule) -> OpGraph | None:
        """The static graph of a schedule, if it was stored with it and can be read."""

    @abstractmethod
    def put_latencies(self, device_key: str, latencies: Mapping[str, StageLatency]) -> None:
        """Store latencies of stages on a device by signature, in place of older ones."""

    @abstractmethod
    def all_latencies(self, device_key: str) -> dict[str, float]:
        """All latencies on a device in microseconds, by signature; those measured last are last."""

    @abstractmethod
    def _forget_latencies(self, schedule: Schedule) -> None:
        """Remove what was measured on a device before a schedule was stored."""

    def schedules_for(
        self, model_digest: str, options: ModelOptions, device_key: str
    ) -> list[Schedule]:
        """Schedules that a model was compiled for with these options, on one device.

        Those of other batch sizes are of other registrations of the same bytes.
        """
        wanted = options.planner.text, options.precision, options.accepted_error, options.samples
        stored = self.schedules_of(model_digest, device_key)
        stored = [schedule for schedule in stored if _asked(schedule.key) == wanted]
        asked = options.batch_sizes or (1, *LARGER_SIZES)
        own = [schedule for schedule in stored if schedule.key.batch_size in asked]
        return own or [each for each in stored if each.key.batch_size == 1]  # it takes one row

    def ask_again(self, schedules: Iterable[Schedule], reason: str) -> None:
        """Let the next job of their model make schedules again; they serve until then.

        All measurements of their devices that are no younger than them are removed: they come from
        the same device, and nobody knows since when it has been another one.
        """
        asked = list(schedules)
        for schedule in asked:
            self._forget_latencies(schedule)
        for schedule in asked:
            provenance = replace(schedule.provenance, again=reason)
            self.put_schedule(replace(schedule, provenance=provenance))


def read_schedule(schedule_id: str, text: str) -> Schedule | None:
    """Read a stored schedule; None, with a warning, if it cannot be read: it is made again then."""
    try:
        document = json.loads(text)
        if "state" in document["key"]:  # of an earlier version, for one state of the cores
            return None
        return schedule_from_json(document)
    except (InvalidArtefact, LookupError, TypeError, ValueError, RecursionError) as error:
        log.warning("unreadable schedule", extra={"schedule_id": schedule_id, "reason": str(error)})
        return None


def read_graph(schedule: Schedule, text: str) -> OpGraph | None:
    """Read the graph stored with a schedule; None: it cannot be read, or is another schedule's."""
    try:
        graph = load_graph(text)
    except InvalidArtefact as error:
        facts = {"schedule_id": schedule.key.id, "reason": str(error)}
        log.warning("unreadable graph of a schedule", extra=facts)
        return None
    # A schedule of other units may have been stored without its graph.
    names = tuple(operator.name for operator in graph.operators)
    return graph if names == schedule.unit_names else None


def with_present_engines(schedule: Schedule, software: Mapping[str, str]) -> Schedule:
    """The schedule; asked for again if an engine of one of its parts is gone or another version."""
    for part in schedule.plan.parts:
        present = software.get(part.engine, "")
        if present != part.version and not schedule.is_asked:
            name = RUNTIMES.get(part.engine, part.engine)
            now = f"{name} is {present}" if present else f"{name} is gone"
            why = f"a part of it ran in {name} {part.version}, and {now}"
            return replace(schedule, provenance=replace(schedule.provenance, again=why))
    return schedule


def _asked(key: ScheduleKey) -> tuple[str, str, float | None, str]:
    """Options of the compilations that get a schedule with this key."""
    return key.planner, key.precision, key.accepted_error, key.samples


P = ParamSpec("P")
T = TypeVar("T")


class StoredResults(Protocol):
    """Part of ``braid.compiler.results.Results`` that a compilation uses; its methods block."""

    def all_latencies(self, device_key: str, /) -> dict[str, float]: ...

    def put_latencies(self, device_key: str, latencies: Mapping[str, StageLatency], /) -> None: ...

    def find_schedule(self, key: ScheduleKey, /) -> Schedule | None: ...


class Call(Protocol):
    """Runs a function in another thread, as ``asyncio.to_thread`` does."""

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...


class Cache:
    """Measurements of one device, and what earlier compilations of one model found.

    The cache of one compilation: it reads the device's measurements once, then appends. Any call
    may raise what its store raises, which ends the compilation.
    """

    def __init__(
        self, results: StoredResults, call: Call, device_key: str, keys: Sequence[ScheduleKey] = ()
    ) -> None:
        """Look at nothing yet; ``keys`` are of all schedules of the model."""
        self._results = results
        self._call = call
        self._device_key = device_key
        self._keys = keys
        self._latencies_us: dict[str, float] | None = None

    async def all_latencies(self) -> Mapping[str, float]:
        """Latencies on the device in microseconds by signature, those measured last at the end."""
        if self._latencies_us is None:
            self._latencies_us = await self._call(self._results.all_latencies, self._device_key)
        return self._latencies_us

    async def find_latencies(self, signatures: Sequence[str]) -> Mapping[str, float]:
        """Latencies in microseconds of those ``signatures`` that were measured before."""
        latencies_us = await self.all_latencies()
        return {name: latencies_us[name] for name in signatures if name in latencies_us}

    async def keep_latencies(self, latencies: Mapping[str, StageLatency]) -> None:
        """Keep latencies by signature, in place of earlier ones."""
        await self._call(self._results.put_latencies, self._device_key, latencies)
        if self._latencies_us is not None:
            self._latencies_us |= {name: entry.latency_us for name, entry in latencies.items()}

    async def find_quantisation(self) -> Quantisation | None:
        """How an earlier schedule of the same model and options computes on 8-bit integers."""
        for key in self._keys:
            schedule = await self._call(self._results.find_schedule, key)
            if schedule is not None and schedule.provenance.quantisation is not None:
                return schedule.provenance.quantisation
        return None
