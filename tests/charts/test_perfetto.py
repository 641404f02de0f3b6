"""The trace against the Trace Event Format's rules, which Perfetto's JSON importer applies."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import jsonschema
import pytest

from benchmarks.inception_block import inception_e, planned
from braid.charts.perfetto import perfetto_trace
from braid.charts.timeline import scheduled, sequential

# Google's "Trace Event Format", JSON object format: complete (X) and metadata (M) events.
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "ph", "pid", "tid", "ts"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "cat": {"type": "string"},
                    "ph": {"enum": ["X", "M"]},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "ts": {"type": "number", "minimum": 0},
                    "dur": {"type": "number", "minimum": 0},
                    "args": {"type": "object"},
                },
                "additionalProperties": False,
                "allOf": [
                    {
                        "if": {"properties": {"ph": {"const": "X"}}},
                        "then": {"required": ["dur", "cat"]},
                        "else": {
                            "properties": {
                                "name": {
                                    "enum": ["process_name", "process_sort_index", "thread_name"]
                                }
                            },
                            "required": ["args"],
                        },
                    }
                ],
            },
        },
    },
}


def test_the_trace_follows_the_format_and_nests_properly() -> None:
    schedule, graph = planned(), inception_e()
    tracks = [sequential(schedule), scheduled(schedule)]

    trace = json.loads(json.dumps(perfetto_trace(tracks, [graph, graph], "Inception-E")))

    jsonschema.validate(trace, SCHEMA)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    threads = defaultdict(list)
    for event in complete:
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():  # slices of one thread may not partly overlap
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(spans))
    stages = [event["dur"] for event in complete if event["cat"] == "stage"]
    assert sum(stages) == pytest.approx(trace["otherData"]["makespan_us"][1])
