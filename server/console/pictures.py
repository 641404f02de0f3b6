"""Pictures of a model's schedules, for the command line and for the console."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from braid.charts.difference import Difference, compare
from braid.charts.perfetto import perfetto_trace
from braid.charts.svg import legible_zoom, time_text, timeline_svg
from braid.charts.timeline import Timeline, scheduled, sequential
from braid.core.errors import InvalidArtefact, InvalidRequest
from braid.core.graph import OpGraph, graph_from_json
from braid.core.measurement import speed_text
from braid.core.plan import runs_in_sequence
from braid.core.schedule import Schedule, schedule_from_json
from braid.scheduler.blocks import split_blocks
from braid.scheduler.options import PlannerSettings
from braid.scheduler.units import UnitGraph


@dataclass(frozen=True, slots=True)
class Drawn:
    """A schedule, the graph its indices refer to, and the part of it to draw."""

    name: str  # for headings, e.g. "inception, batch 1, cpu"
    schedule: Schedule
    graph: OpGraph
    units: Collection[int] | None = None  # None: all

    def __post_init__(self) -> None:
        if tuple(op.name for op in self.graph.operators) != self.schedule.unit_names:
            raise InvalidArtefact("the schedule names other units than its graph")

    @staticmethod
    def of(name: str, schedule: Schedule, graph: OpGraph, block: int | None = None) -> Drawn:
        """Return a model's schedule; of one block only, from 1, or from the end if negative.

        Raises InvalidArtefact: the graph is another's; InvalidRequest: there is no such block.
        """
        device = schedule.key.device_key.split(":")[0]
        label = f"{name}, batch {schedule.key.batch_size}, {device}"
        if block is None:
            return Drawn(label, schedule, graph)
        units = block_units(schedule, graph, block)
        part = "last block" if block == -1 else f"block {block}"
        return Drawn(f"{label}, {part}", schedule, graph, units)

    @property
    def tracks(self) -> list[Timeline]:
        """The sequential plan, and beside it the schedule's unless it is the same."""
        plan = scheduled(self.schedule, self.units)
        if runs_in_sequence(self.schedule.plan):
            return [plan]
        return [sequential(self.schedule, self.units), plan]


def drawn(name: str, schedule: Any, graph: Any, block: int | None = None) -> Drawn:
    return Drawn.of(name, schedule_from_json(dict(schedule)), graph_from_json(graph), block)


def blocks_of(schedule: Schedule, graph: OpGraph) -> list[tuple[int, ...]]:
    """Return the blocks of several units that the schedule's planner solved one by one."""
    options = PlannerSettings.parse(schedule.key.planner)
    blocks = split_blocks(UnitGraph.from_graph(graph), options.max_block_ops)
    return [units for units in blocks if len(units) > 1]


def block_units(schedule: Schedule, graph: OpGraph, block: int) -> tuple[int, ...]:
    """Return the units of one block; single units between blocks with a choice do not count.

    Raises InvalidRequest: there is no such block.
    """
    blocks = blocks_of(schedule, graph)
    if not 1 <= abs(block) <= len(blocks):
        raise InvalidRequest(
            f"there is no block {block}: this model has {len(blocks)} blocks, 1 to {len(blocks)}, "
            "or -1 for the last"
        )
    return blocks[block - 1 if block > 0 else block]


def svg(which: Drawn, zoom: int = 1) -> str:
    tracks = which.tracks
    return timeline_svg(tracks, [which.graph] * len(tracks), which.name, zoom)


def trace(which: Drawn) -> dict[str, Any]:
    tracks = which.tracks
    return perfetto_trace(tracks, [which.graph] * len(tracks), which.name)


def compared_svg(first: Drawn, second: Drawn, *, is_legible: bool = False) -> str:
    """Two schedules on one axis, as SVG; ``is_legible``: long enough to tell most units apart."""
    tracks = [scheduled(drawn.schedule, drawn.units) for drawn in (first, second)]
    heading = f"{first.name} against {second.name}"
    zoom = legible_zoom(tracks) if is_legible else 1
    return timeline_svg(tracks, [first.graph, second.graph], heading, zoom)


def difference_lines(first: Drawn, second: Drawn) -> Iterator[str]:
    """Yield lines about what differs, for people; the first is the summary."""
    difference = compare(first.schedule, second.schedule)
    yield _summary(difference)
    yield f"  first:  {_facts(first)}"
    yield f"  second: {_facts(second)}"
    for label, names in (("first", difference.only_first), ("second", difference.only_second)):
        if names:
            yield f"  only in the {label}: {_some(names)}"


def _summary(difference: Difference) -> str:
    if difference.is_same:
        return "both run the same units in the same stages on the same streams"
    if not difference.stages or not difference.second.stages:
        return "at least one of them has no stages: its planner makes stream plans"
    return f"{difference.kept} of {len(difference.stages)} stages are in both"


def _facts(which: Drawn) -> str:
    schedule = which.schedule
    groups = sum(len(stage.groups) for stage in schedule.stages)
    measured = schedule.provenance.measured_us
    latency = "not measured" if measured is None else f"measured {time_text(measured)}"
    faster = "" if schedule.speed is None else f", {speed_text(schedule.speed)} sequential"
    return (
        f"{which.name}: {schedule.planner}, {len(schedule.stages)} stages, {groups} groups, "
        f"{latency}{faster}"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def difference_rows(difference: Difference) -> Iterator[tuple[str, ...]]:
    """Yield one row for each stage of the first that is not in the second."""
    for change in difference.stages:
        if change.change != "kept":
            yield (
                str(change.stage),
                change.change,
                ", ".join(map(str, change.others)) or "-",
                "-" if change.latency_us is None else time_text(change.latency_us),
                "-" if change.other_latency_us is None else time_text(change.other_latency_us),
            )


def difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "same": difference.is_same,
        "kept": difference.kept,
        "first": difference.first.key.to_json(),
        "second": difference.second.key.to_json(),
        "only_first": list(difference.only_first),
        "only_second": list(difference.only_second),
        "stages": [asdict(change) for change in difference.stages],
    }
