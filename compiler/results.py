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
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace

from braid.compiler.options import LARGER_SIZES, ModelOptions
from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, load_graph
from braid.core.measurement import StageLatency
from braid.core.schedule import Provisional, Schedule, ScheduleKey, schedule_from_json

log = logging.getLogger("braid.store")

BEFORE_S = 0.1
"""Seconds before a schedule began to be made that count to its making: it is stored later."""


class Results(ABC):
    """Schedules by their keys, and measurements by device and signature. Methods block."""

    @abstractmethod
    def put_schedule(self, schedule: Schedule, graph: OpGraph | None = None) -> None:
        """Store a schedule in place of an earlier one; without a graph, that one's stays."""

    @abstractmethod
    def find_schedule(self, key: ScheduleKey) -> Schedule | None:
        """The schedule with this key, if there is one that can be read."""

    def find_in_state(self, key: ScheduleKey, state: str) -> Schedule | None:
        """The schedule for the device in the state of a name, else the one that was made first.

        The one that was made first has ``key``; ``Schedule.is_of`` tells the two apart.
        """
        first = self.find_schedule(key)
        if first is None or first.is_of(state):
            return first
        return self.find_schedule(replace(key, state=state)) or first

    def place_of(self, schedule: Schedule) -> tuple[ScheduleKey, Schedule | None]:
        """Key that a new schedule is to be stored under, and the schedule that is there."""
        key, state = schedule.key.of_first_state, schedule.provenance.state
        first = self.find_schedule(key)
        if first is None or first.is_of(state):
            return key, first
        key = replace(key, state=state)
        return key, self.find_schedule(key)

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
    def _forget_latencies(self, schedule: Schedule, last_s: float | None = None) -> None:
        """Remove what was measured on a device before a schedule was stored; all, or the last."""

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

    def doubt(self, doubted: Iterable[Schedule], reason: str, *, is_asked: bool) -> list[Schedule]:
        """Mark schedules as provisional; they serve until they are made again.

        All measurements of their devices that are no younger than them are removed: they come from
        the same device, and nobody knows since when it has been another one. Returns the marked
        schedules. With ``is_asked`` the next job of their model makes them again.
        """
        marked = []
        for schedule in doubted:
            self._forget_latencies(schedule)
            was = schedule.provenance.provisional
            is_compared = was is None or was.is_compared
            now = Provisional(
                reason, at_unix=time.time(), is_compared=is_compared, is_asked=is_asked
            )
            marked.append(schedule.found_provisional(now))
        for schedule in marked:
            self.put_schedule(schedule)
        return marked

    def ask_again(self, provisional: Iterable[Schedule]) -> None:
        """Let the next job of their model make schedules again that are provisional.

        What was measured on their devices while they were made is removed.
        """
        for schedule in provisional:
            if (why := schedule.provenance.provisional) is not None:
                if why.made_in_s:
                    self._forget_latencies(schedule, why.made_in_s + BEFORE_S)
                self.put_schedule(schedule.found_provisional(replace(why, is_asked=True)))


def read_schedule(schedule_id: str, text: str) -> Schedule | None:
    """Read a stored schedule; None, with a warning, if it cannot be read: it is made again then."""
    try:
        return schedule_from_json(json.loads(text))
    except (InvalidArtefact, ValueError, RecursionError) as error:
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


def _asked(key: ScheduleKey) -> tuple[str, str, float | None, str]:
    """Options of the compilations that get a schedule with this key."""
    return key.planner, key.precision, key.accepted_error, key.samples
