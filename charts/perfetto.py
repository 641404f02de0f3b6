"""Timelines as a trace for ui.perfetto.dev and chrome://tracing (the Trace Event Format, JSON)."""

from collections.abc import Iterator, Sequence
from typing import Any

from braid.charts.kinds import family_of, kind_text
from braid.charts.timeline import Timeline, describe_unit
from braid.core.graph import OpGraph

STAGES_THREAD = 1000


def perfetto_trace(
    tracks: Sequence[Timeline], graphs: Sequence[OpGraph], heading: str
) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    for number, (track, graph) in enumerate(zip(tracks, graphs, strict=True), start=1):
        events += _names(track, number)
        events += _events(track, graph, number)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": heading, "makespan_us": [track.makespan_us for track in tracks]},
    }


def _names(track: Timeline, process: int) -> Iterator[dict[str, Any]]:
    """Metadata events: what processes and threads are called, and their order."""
    yield _metadata("process_name", process, 0, {"name": track.title})
    yield _metadata("process_sort_index", process, 0, {"sort_index": process})
    for lane in range(track.lanes):
        yield _metadata("thread_name", process, lane + 1, {"name": f"stream {lane}"})
    if track.stages:
        yield _metadata("thread_name", process, STAGES_THREAD, {"name": "stages"})


def _metadata(name: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "ts": 0, "args": args}


def _events(track: Timeline, graph: OpGraph, process: int) -> Iterator[dict[str, Any]]:
    for bar in track.bars:
        op = graph.operators[bar.unit]
        yield {
            "ph": "X",
            "name": f"{op.name} ({kind_text(op)})",
            "cat": family_of(op).name,
            "pid": process,
            "tid": bar.lane + 1,
            "ts": bar.start_us,
            "dur": bar.duration_us,
            "args": {
                "unit": bar.unit,
                "alone_us": bar.alone_us,
                "runs_in": bar.runs_in or "own kernels",
                "what": describe_unit(graph, bar.unit),
            },
        }
    for span in track.stages:
        yield {
            "ph": "X",
            "name": f"stage {span.number} ({span.strategy})",
            "cat": "stage",
            "pid": process,
            "tid": STAGES_THREAD,
            "ts": span.start_us,
            "dur": span.duration_us,
            "args": {"groups": [list(group) for group in span.groups]},
        }
