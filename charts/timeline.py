"""Timelines, from which charts are drawn: when each unit of a schedule runs, in microseconds.

    stage 1              stage 2
    |-- a --|-- b --|    |---- d ----|        stream 0
    |--- c ---|          |- e -|              stream 1
    0                    latency of stage 1, and so on; the last stage ends at the makespan

What was measured is the latency of stages and of single units. A unit inside a stage is drawn in
proportion to its latency alone, scaled so that the longest group fills the stage: units that run
side by side slow each other down. Where a unit was never measured alone it counts as the median
unit, and the timeline says that it is estimated.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from braid.core.graph import OpGraph
from braid.core.plan import EnginePart, engine_text
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Schedule, Stage


@dataclass(frozen=True, slots=True)
class Bar:
    """One unit on the axis. Times in microseconds."""

    unit: int  # index into OpGraph.operators
    lane: int  # stream or thread
    start_us: float
    duration_us: float
    group: int | None = None  # its number inside the stage, from 0
    stage: int | None = None  # from 1, over the whole schedule
    alone_us: float | None = None  # as measured by itself, None if it never was
    engine: str = ""  # that runs it as one with others, of braid.core.runtimes; empty: own kernels
    runs_in: str = ""  # text of that engine, with its version and threads


@dataclass(frozen=True, slots=True)
class StageSpan:
    """One stage on the axis."""

    number: int  # from 1, over the whole schedule
    start_us: float
    duration_us: float
    strategy: str
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All units of a plan, or of a part of it, from 0 to ``makespan_us``."""

    title: str
    bars: tuple[Bar, ...]
    stages: tuple[StageSpan, ...]
    makespan_us: float  # end of the last unit; the sum of the stages where there are stages
    measured_us: float | None = None  # whole model as one, where it is the whole model
    is_estimated: bool = False  # some duration is a guess

    @property
    def lanes(self) -> int:
        return max((bar.lane for bar in self.bars), default=0) + 1


class UnitTimes:
    """Latency of each unit alone, in microseconds, from what a schedule knows."""

    def __init__(self, schedule: Schedule) -> None:
        measured = {
            unit: schedule.provenance.unit_us[name]
            for unit, name in enumerate(schedule.unit_names)
            if name in schedule.provenance.unit_us
        }
        for stage in schedule.stages:
            if len(stage.operators) == 1 and stage.latency_us is not None:
                measured.setdefault(stage.operators[0], stage.latency_us)
        self.measured_us: Mapping[int, float] = measured
        self._guess = median(measured.values()) if measured else _mean_us(schedule)

    def __getitem__(self, unit: int) -> float:
        return max(self.measured_us.get(unit, self._guess), 1e-3)

    def cover(self, units: Iterable[int]) -> bool:
        return all(unit in self.measured_us for unit in units)


def _mean_us(schedule: Schedule) -> float:
    provenance = schedule.provenance
    whole = provenance.sequential_us or provenance.predicted_us or provenance.measured_us or 0.0
    return whole / len(schedule.unit_names) if whole else 1.0


def scheduled(schedule: Schedule, units: Collection[int] | None = None) -> Timeline:
    """The timeline of a schedule; of the stages that hold some of ``units``, if given."""
    times = UnitTimes(schedule)
    whole = units is None and not schedule.runtime
    measured = schedule.provenance.measured_us if whole else None
    title = _title(schedule)
    if not schedule.stages:
        return _simulated(schedule, times, units, title, measured)
    part_of = _part_of(schedule)
    bars: list[Bar] = []
    spans: list[StageSpan] = []
    now, guessed = 0.0, False
    for number, stage in enumerate(schedule.stages, start=1):
        if units is not None and not set(stage.operators) & set(units):
            continue
        length = stage.latency_us
        if length is None:
            length, guessed = max(sum(times[u] for u in group) for group in stage.groups), True
        guessed = guessed or not times.cover(stage.operators)
        shown = _stage_bars(stage, number, now, length, times)
        bars += [_in_engine(bar, part_of.get(bar.unit)) for bar in shown]
        spans.append(StageSpan(number, now, length, stage.strategy, stage.groups))
        now += length
    return Timeline(title, tuple(bars), tuple(spans), now, measured, guessed)


def _title(schedule: Schedule) -> str:
    """Title of a chart: what made the plan, and what a reader must know to read it."""
    planner = schedule.planner.partition("(")[0]  # options would fill the line
    title = f"{planner}, batch {schedule.key.batch_size}"
    if schedule.runtime:
        return f"{title}: the plan that runs if {RUNTIMES[schedule.runtime]} cannot"
    rows = [part.rows for part in schedule.plan.parts if part.rows]
    if rows:
        shares = " + ".join(map(str, rows))
        return f"{title}, {shares} rows side by side in {engine_text(schedule.plan.parts[0])}"
    joined = len(schedule.plan.barriers) < len(schedule.stages) - 1
    if schedule.plan.streams > 1 and schedule.stages and joined:
        return f"{title}, no barriers: stages may overlap"
    return title


def _stage_bars(
    stage: Stage, number: int, start: float, length: float, times: UnitTimes
) -> list[Bar]:
    """The units of one stage; those of a merged stage are one kernel, and so share its time."""
    longest = max(sum(times[unit] for unit in group) for group in stage.groups)
    bars = []
    for lane, group in enumerate(stage.groups):
        now = start
        whole = sum(times[unit] for unit in group)
        scale = length / (whole if stage.strategy == "merge" else longest)
        for unit in group:
            duration = times[unit] * scale
            alone = times.measured_us.get(unit)
            bars.append(Bar(unit, lane, now, duration, lane, number, alone))
            now += duration
    return bars


def sequential(schedule: Schedule, units: Collection[int] | None = None) -> Timeline:
    """All units one after the other, each as long as it takes alone."""
    times = UnitTimes(schedule)
    shown = [u for u in range(len(schedule.unit_names)) if units is None or u in units]
    bars, now = [], 0.0
    for unit in shown:
        bars.append(Bar(unit, 0, now, times[unit], alone_us=times.measured_us.get(unit)))
        now += times[unit]
    measured = schedule.provenance.sequential_us if units is None else None
    return Timeline("sequential", tuple(bars), (), now, measured, not times.cover(shown))


def _simulated(
    schedule: Schedule,
    times: UnitTimes,
    units: Collection[int] | None,
    title: str,
    measured_us: float | None,
) -> Timeline:
    """Timeline without stages: a unit starts when its stream is free and its waits have ended."""
    free = [0.0] * schedule.plan.streams
    ended: dict[int, float] = {}
    bars = []
    barriers = set(schedule.plan.barriers)
    part_of = _part_of(schedule)
    for position, launch in enumerate(schedule.plan.launches):
        if position in barriers:
            free = [max(free)] * len(free)
        if units is not None and launch.unit not in units:
            continue
        waits = [ended[unit] for unit in launch.waits if unit in ended]
        start = max([free[launch.stream], *waits])
        duration = times[launch.unit]
        alone_us = times.measured_us.get(launch.unit)
        bar = Bar(launch.unit, launch.stream, start, duration, alone_us=alone_us)
        bars.append(_in_engine(bar, part_of.get(launch.unit)))
        free[launch.stream] = ended[launch.unit] = start + duration
    return Timeline(
        f"{title}, streams without stages",
        tuple(bars),
        (),
        max(free),
        measured_us,
        is_estimated=True,
    )


def _part_of(schedule: Schedule) -> Mapping[int, EnginePart]:
    return {unit: part for part in schedule.plan.parts for unit in part.units}


def _in_engine(bar: Bar, part: EnginePart | None) -> Bar:
    return bar if part is None else replace(bar, engine=part.engine, runs_in=engine_text(part))


def describe_unit(graph: OpGraph, unit: int) -> list[str]:
    op = graph.operators[unit]
    lines = [f"{op.name} ({op.kind})"]
    reads = [f"{name}: {_spec(graph, name)}" for name in op.inputs if name]
    lines += [f"in   {text}" for text in reads[:6]]
    lines += [f"out  {name}: {_spec(graph, name)}" for name in op.outputs[:6]]
    fused = op.attributes.get("epilogue")
    if isinstance(fused, list) and fused:
        steps = (str(step[0] if isinstance(step, list) else step) for step in fused)
        lines.append(f"fused {', '.join(steps)}")
    for attribute in ("kernel", "variant"):
        if attribute in op.attributes:
            lines.append(f"{attribute} {op.attributes[attribute]}")
    return lines


def _spec(graph: OpGraph, value: str) -> str:
    try:
        return str(graph.spec(value))
    except KeyError:
        return "?"
