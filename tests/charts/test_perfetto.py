"""The trace against the Trace Event Format's rules, which Perfetto's JSON importer applies."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from benchmarks.inception_block import inception_e, planned
from braid.charts.perfetto import perfetto_trace
from braid.charts.timeline import scheduled, sequential

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
