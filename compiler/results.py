"""What compilations leave: schedules with their graphs, and measurements of devices.

Results          marks on schedules, in terms of what is stored
   ├─ ResultFiles     result_files.py: files in a folder, of the library and of a single server
   └─ rows of a database that several servers share

Both kinds outlive the models they were made for: equal bytes, or equal stages of another model,
find them again.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace

from braid.compiler.options import LARGER_SIZES, ModelOptions
from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, load_graph
from braid.core.measurement import StageLatency
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
