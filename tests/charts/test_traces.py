"""Schedules as traces, and the difference of two."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.inception_block import inception_e, planned
from braid.charts.difference import compare
from braid.charts.perfetto import perfetto_trace
from braid.charts.timeline import scheduled, sequential
from braid.core.plan import sequential_plan
from braid.core.schedule import Schedule, ScheduleKey, Stage

# Google's "Trace Event Format", JSON object format: complete (X) and metadata (M) events.
FIELDS: dict[str, Any] = {"name": str, "ph": str, "pid": int, "tid": int, "ts": (float, int)}
MORE: dict[str, dict[str, Any]] = {
    "X": {"cat": str, "dur": (float, int), "args": dict},
    "M": {"args": dict},
}
METADATA = ("process_name", "process_sort_index", "thread_name")


def test_the_trace_follows_the_format_and_nests_properly() -> None:
    schedule, graph = planned(), inception_e()
    tracks = [sequential(schedule), scheduled(schedule)]

    trace = json.loads(json.dumps(perfetto_trace(tracks, [graph, graph], "Inception-E")))

    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        kinds = FIELDS | MORE[event["ph"]]
        assert event.keys() == kinds.keys()
        assert all(isinstance(event[name], kind) for name, kind in kinds.items())
        assert min(event["ts"], event.get("dur", 0)) >= 0
        assert event["ph"] == "X" or event["name"] in METADATA
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    threads = defaultdict(list)
    for event in complete:
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():  # slices of one thread may not partly overlap
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(spans))
    stages = [event["dur"] for event in complete if event["cat"] == "stage"]
    assert sum(stages) == pytest.approx(trace["otherData"]["makespan_us"][1])


def schedule(*stages: Stage, names: tuple[str, ...] = ("a", "b", "c", "d")) -> Schedule:
    key = ScheduleKey("ab" * 32, "cpu", 1)
    return Schedule(key, "ios", sequential_plan(len(names)), stages, names)


FIRST = schedule(Stage(((0,),), latency_us=1.0), Stage(((1,), (2, 3)), latency_us=5.0))


def test_a_schedule_does_not_differ_from_itself() -> None:
    found = compare(FIRST, FIRST)

    assert found.is_same
    assert [change.change for change in found.stages] == ["kept", "kept"]


def test_each_stage_says_where_its_units_went() -> None:
    other = schedule(
        Stage(((0,),), latency_us=1.0), Stage(((1,),), latency_us=2.0), Stage(((2, 3),))
    )

    found = compare(FIRST, other)

    assert not found.is_same
    kept, spread = found.stages
    assert (kept.change, kept.others) == ("kept", (1,))
    assert (spread.change, spread.others, spread.latency_us) == ("spread", (2, 3), 5.0)
    assert spread.other_latency_us is None, "one of them was not measured"


def test_stages_that_the_other_runs_together_are_joined() -> None:
    other = schedule(Stage(((0,), (1,))), Stage(((2, 3),)))

    assert [change.change for change in compare(FIRST, other).stages] == ["joined", "spread"]


def test_regrouping_and_merging_are_told_apart() -> None:
    other = schedule(Stage(((0,),), "merge"), Stage(((1, 2), (3,))))

    assert [change.change for change in compare(FIRST, other).stages] == [
        "merged differently",
        "regrouped",
    ]


def test_units_are_matched_by_name_across_devices_that_fuse_differently() -> None:
    other = replace(schedule(Stage(((0,), (1,))), names=("a", "b")), plan=sequential_plan(2))

    found = compare(FIRST, other)

    assert found.only_first == ("c", "d")
    assert found.only_second == ()
    assert found.stages[1].others == (1,)
    assert found.stages[1].change == "spread"
