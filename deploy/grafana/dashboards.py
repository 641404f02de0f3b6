"""Write ``deploy/grafana/dashboards/*.json``: the panels are listed here, the rest follows.

``python deploy/grafana/dashboards.py`` writes them; a test holds that they are current.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
MODEL = 'model=~"$model",version=~"$version"'
PLAN = f'{MODEL},device=~"$device"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its queries as (expression, legend), and how its numbers read."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    about: str = ""


def quantile(q: float, metric: str) -> str:
    """A quantile of a histogram by model and version."""
    series = f"rate({metric}_bucket{{{MODEL}}}{RATE})"
    return f"histogram_quantile({q}, sum by (model, version, le) ({series}))"


def rate(metric: str, labels: str, by: str) -> str:
    """A rate, summed."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}{RATE}))"


NAME = "{{model}} v{{version}}"
LATENCY = "braid_request_duration_seconds"
QUEUE = "braid_request_queue_seconds"
COMPUTE = "braid_request_compute_seconds"
BATCH = "{{model}} v{{version}} batch {{batch_size}} {{device}}"
MEASURE = "braid_stage_measurement"

SERVICES = (
    Panel("Requests", [(rate("braid_requests_total", MODEL, "model, version"), NAME)], "reqps"),
    Panel(
        "Errors of the server",
        [("braid:request_errors:ratio5m{" + MODEL + "}", NAME)],
        "percentunit",
        about="INTERNAL, UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED over all requests.",
    ),
    Panel(
        "Outcomes", [(rate("braid_requests_total", MODEL, "outcome"), "{{outcome}}")], "reqps"
    ),
    Panel(
        "Latency, p50 and p99",
        [(quantile(0.5, LATENCY), f"p50 {NAME}"), (quantile(0.99, LATENCY), f"p99 {NAME}")],
        "s",
    ),
    Panel("Waiting for the device, p95", [(quantile(0.95, QUEUE), NAME)], "s"),
    Panel("On the device, p50", [(quantile(0.5, COMPUTE), NAME)], "s"),
    Panel(
        "Queue saturation",
        [("braid:queue_saturation:ratio{" + MODEL + "}", NAME)],
        "percentunit",
        about="At 100 % requests are refused.",
    ),
    Panel("Queue", [(f"sum by (model, version) (braid_queue_depth_requests{{{MODEL}}})", NAME)]),
    Panel(
        "Rows in a batch, and how full batches are",
        [
            (
                f"{rate('braid_batch_rows_sum', MODEL, 'model, version')} / "
                f"{rate('braid_batch_rows_count', MODEL, 'model, version')}",
                f"rows {NAME}",
            ),
            (
                f"{rate('braid_batch_rows_sum', MODEL, 'model, version')} / "
                f"{rate('braid_batch_size_rows_sum', MODEL, 'model, version')}",
                f"used {NAME}",
            ),
        ],
    ),
    Panel("Ready jobs and failed jobs", [("sum by (state) (braid_jobs)", "{{state}}")], width=8),
    Panel(
        "Worker restarts", [("sum by (device) (braid_worker_restarts_total)", "{{device}}")]
    ),
    Panel("Memory of the front end", [("process_resident_memory_bytes{job=~\".*braid.*\"}",
          "{{instance}}")], "bytes"),
    Panel(
        "Ready replicas, devices that answer",
        [("sum(braid_ready)", "replicas"), ("sum by (device) (braid_device_up)", "{{device}}")],
    ),
    Panel(
        "Versions that answer",
        [(f"sum by (model, version) (braid_model_ready{{{MODEL}}})", NAME)],
    ),
    Panel("Versions by state", [("sum by (state) (braid_models)", "{{state}}")]),
    Panel(
        "Memory of workers",
        [("braid_worker_memory_bytes", "{{instance}} {{device}} {{process}} {{memory}}")],
        "bytes",
        about="Private memory of each process; on a GPU, what torch has reserved there.",
    ),
    Panel(
        "Memory of models",
        [(f"braid_model_memory_bytes{{{MODEL}}}", NAME + " {{device}} {{kind}} {{memory}}")],
        "bytes",
        about="Versions of the same file share their weights.",
    ),
    Panel(
        "Store and room on its disk",
        [
            ("braid_store_bytes", "store {{instance}}"),
            ("braid_store_free_bytes", "free {{instance}}"),
        ],
        "bytes",
    ),
    Panel(
        "Uploads, p50 and p95 of their sizes",
        [
            ("histogram_quantile(0.5, sum by (le) (braid_upload_bytes_bucket))", "p50"),
            ("histogram_quantile(0.95, sum by (le) (braid_upload_bytes_bucket))", "p95"),
        ],
        "bytes",
        about="Since the start of each server.",
    ),
    Panel(
        "What runs",
        [
            (
                "sum by (version, commit, torch, onnxruntime) (braid_build_info)",
                "{{version}} {{commit}} torch {{torch}} onnxruntime {{onnxruntime}}",
            )
        ],
        kind="bargauge",
        width=16,
    ),
)  # fmt: skip

SCHEDULES = (
    Panel(
        "Speed-up over the sequential plan",
        [
            (f"braid_schedule_speedup_ratio{{{PLAN}}}", BATCH),
            (f"braid_schedule_speedup_least_ratio{{{PLAN}}}", "at least " + BATCH),
            (f"braid_schedule_speedup_most_ratio{{{PLAN}}}", "at most " + BATCH),
        ],
        kind="bargauge",
        about="Whole model: median ratio of turns in which both ran, and its interval (90 %).",
    ),
    Panel(
        "Serving plans",
        [(f"braid_schedule_promoted{{{PLAN}}}", BATCH)],
        kind="bargauge",
        about="1: the schedule serves; 0: it was refused and the sequential plan serves.",
    ),
    Panel("Stages", [(f"braid_schedule_stages{{{PLAN}}}", BATCH)], kind="bargauge"),
    Panel(
        "Candidates",
        [(f"braid_schedule_candidate_latency_seconds{{{PLAN}}}", "{{planner}} " + BATCH)],
        "s",
        kind="bargauge",
        width=12,
        about="Each plan that was tried, as a whole model, in the same run.",
    ),
    Panel(
        "Scheduled and sequential latency, as profiled",
        [
            (f"braid_schedule_latency_seconds{{{PLAN}}}", "scheduled " + BATCH),
            (f"braid_schedule_sequential_latency_seconds{{{PLAN}}}", "sequential " + BATCH),
        ],
        "s",
        width=12,
    ),
    Panel(
        "Batches by plan",
        [(f"sum by (plan) (rate(braid_plan_runs_total{{{PLAN}}}{RATE}))", "{{plan}}")],
        "ops",
        width=12,
        about="Where requests choose from several plans.",
    ),
    Panel(
        "Time that trying other plans cost",
        [(f"braid_plan_estimated_loss_ratio{{{PLAN}}}", BATCH)],
        "percentunit",
        width=12,
    ),
    Panel(
        "Schedule cache",
        [("sum by (result) (braid_schedule_cache_lookups_total)", "{{result}}")],
        width=6,
    ),
    Panel(
        "Stages measured and found in the store",
        [
            (f'sum by (device) ({MEASURE}s_total{{device=~"$device"}})', "measured {{device}}"),
            (f'sum by (device) ({MEASURE}s_reused_total{{device=~"$device"}})', "found {{device}}"),
        ],
        width=6,
    ),
    Panel(
        "Measurement cost",
        [(f'sum by (device) ({MEASURE}_seconds_total{{device=~"$device"}})', "{{device}}")],
        "s",
        width=6,
    ),
)


NODE = "{{instance}}"

WAITING = f"histogram_quantile({{q}}, sum by (le) (rate({QUEUE}_bucket{RATE})))"

FLEET = (
    Panel(
        "Requests and failures of the fleet",
        [
            (f"sum(rate(braid_requests_total{RATE}))", "requests"),
            (f'sum(rate(braid_requests_total{{outcome!="OK"}}{RATE}))', "not OK"),
        ],
        "reqps",
    ),
    Panel(
        "Replicas that are up",
        [("count(braid_fleet_nodes)", "asked by Prometheus"), ("max(braid_fleet_nodes)", "beat")],
        about="Nodes that answer Prometheus, and nodes that tell the database that they live.",
    ),
    Panel(
        "Waiting in the fleet, p50 and p99",
        [(WAITING.format(q=0.5), "p50"), (WAITING.format(q=0.99), "p99")],
        "s",
        about="Time that requests wait for a device: what the autoscalers go by.",
    ),
    Panel(
        "Requests of each node",
        [(f"sum by (instance) (rate(braid_requests_total{RATE}))", NODE)],
        "reqps",
        about="Nodes that are not equally fast need weights: docs/fleet-size.md.",
    ),
    Panel(
        "Requests that wait on each node",
        [("sum by (instance) (braid_queue_depth_requests)", NODE)],
    ),
    Panel(
        "p99 of each node",
        [(f"histogram_quantile(0.99, sum by (instance, le) (rate({LATENCY}_bucket{RATE})))", NODE)],
        "s",
    ),
    Panel(
        "Nodes that live, as each node sees it",
        [("braid_fleet_nodes", NODE)],
        about="Nodes that told the database within BRAID_LEASE_SECONDS that they live.",
    ),
    Panel("Leases held", [("braid_fleet_leases_held", NODE)], about="Jobs and keys worked on."),
    Panel(
        "Takeovers, leases lost, writes refused",
        [
            ("sum(increase(braid_fleet_takeovers_total[15m]))", "jobs taken over"),
            ("sum(increase(braid_fleet_leases_lost_total[15m]))", "leases lost"),
            ("sum(increase(braid_fleet_writes_refused_total[15m]))", "writes refused"),
        ],
        about="Within 15 minutes. Each follows a node that died, stood still or was cut off.",
    ),
    Panel(
        "Follower's lag",
        [("braid_fleet_follow_lag_seconds", NODE)],
        "s",
        about="From the last change of another node to the moment this one had applied it.",
    ),
    Panel(
        "Looks at the database",
        [
            (f"rate(braid_fleet_reconciliations_total{RATE})", NODE),
            (f"rate(braid_fleet_reconciliation_failures_total{RATE})", "failed " + NODE),
        ],
        "ops",
    ),
    Panel("Cache of shared files", [("braid_fleet_cache_bytes", NODE)], "bytes"),
    Panel(
        "Files asked for, by where they were",
        [(f"sum by (kind, source) (rate(braid_fleet_fetches_total{RATE}))",
          "{{kind}} {{source}}")],
        "ops",
    ),
    Panel(
        "Fetched and put",
        [
            (f"sum(rate(braid_fleet_fetched_bytes_total{RATE}))", "fetched"),
            (f"sum(rate(braid_fleet_put_bytes_total{RATE}))", "put"),
        ],
        "Bps",
    ),
    Panel(
        "Puts, fetches and sweeps that failed",
        [(f"sum by (instance, operation) (rate(braid_fleet_file_failures_total{RATE}))",
          "{{instance}} {{operation}}")],
        "ops",
    ),
    Panel(
        "Files that left caches, objects that sweeps removed",
        [
            (f"sum(rate(braid_fleet_cache_evictions_total{RATE}))", "left caches"),
            (f"sum(rate(braid_fleet_objects_removed_total{RATE}))", "removed"),
        ],
        "ops",
    ),
)  # fmt: skip


RAY = [
    {"type": "link", "title": f"Ray: {what}", "url": f"/d/{uid}", "keepTime": True}
    for what, uid in (("Serve", "rayServeDashboard"), ("cluster", "rayDefaultDashboard"))
]
"""Links to the dashboards that Ray writes (``ray metrics``), by their identities."""


def dashboard(
    uid: str,
    title: str,
    panels: Sequence[Panel],
    labels: Sequence[str],
    others: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A dashboard of Grafana's JSON model."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["braid"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source_variable(), *map(_variable, labels)]},
        "panels": _laid_out(panels),
        "annotations": {"list": []},
        "links": [
            {"type": "dashboards", "tags": ["braid"], "title": "Braid", "asDropdown": False},
            *others,
        ],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _variable(label: str) -> dict[str, Any]:
    metric = "braid_worker_restarts_total" if label == "device" else "braid_requests_total"
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _laid_out(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Panels in rows of 24 columns."""
    x = y = 0
    placed = []
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > 24:
            x, y = 0, y + 8
        placed.append(_panel(number, panel, x, y))
        x += panel.width
    return placed


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    is_series = panel.kind == "timeseries"
    return {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}}
        if is_series
        else {
            "orientation": "horizontal",
            "displayMode": "basic",
            "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": not is_series,
                "range": is_series,
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


DASHBOARDS = {
    "services.json": dashboard("braid-services", "Braid: services", SERVICES, ("model", "version")),
    "schedules.json": dashboard(
        "braid-schedules", "Braid: schedules", SCHEDULES, ("model", "version", "device")
    ),
    "fleet.json": dashboard("braid-fleet", "Braid: fleet", FLEET, (), RAY),
}


def as_text(document: Mapping[str, Any]) -> str:
    """JSON with a member a line, and a panel a line."""
    panels = ",\n".join(f"    {json.dumps(panel)}" for panel in document["panels"])
    members = {name: json.dumps(value) for name, value in document.items()}
    members["panels"] = f"[\n{panels}\n  ]"
    return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in members.items()) + "\n}\n"


def main() -> None:
    for name, document in DASHBOARDS.items():
        (FOLDER / name).write_text(as_text(document))


if __name__ == "__main__":
    main()
