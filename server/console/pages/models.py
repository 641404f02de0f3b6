"""The pages about models: all of them, and one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from braid.core.measurement import Speed, speed_text
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Contender, Schedule
from braid.core.tensor import TensorType
from braid.server.console.facts import Facts
from braid.server.console.pages.html import Child, Html, h, table
from braid.server.console.pages.layout import (
    Page,
    action,
    duration,
    latency,
    live,
    moment,
    pairs,
    state,
    tiles,
    url,
)
from braid.server.console.rates import Key, ModelRates
from braid.server.models.queries import Placed
from braid.server.store.records import ModelVersion

COLUMNS = ("model", "version", "state", "requests/s", "p50", "p99", "failures/s", "waiting",
           "speed-up by batch")  # fmt: skip
NUMBERS = ("version", "requests/s", "p50", "p99", "failures/s", "waiting")
FEW = 12  # models that need no filter


async def all_models(facts: Facts, wanted: str) -> Page:
    """Return the page of all model versions whose name contains ``wanted``."""
    models = await facts.queries.models()
    shown = [each for each in models if wanted.lower() in each.name.lower()]
    activity = await facts.activity()
    jobs = [each for each in await facts.jobs() if not each.state.has_ended]
    total = sum(each.requests_per_s for each in activity.values())
    body = h(
        "div",
        live(
            "tiles",
            tiles(
                ("models", len({each.name for each in models})),
                ("requests/s", f"{total:.1f}" if activity else "–"),
                ("jobs under way", h("a", str(len(jobs)), href=url("jobs"))),
            ),
        ),
        _filter(wanted) if len(models) > FEW or wanted else None,
        live("models", _models_table(facts, shown, activity)),
        h("p", "Rates and latencies are those of the last minute.", class_="note"),
    )
    return Page("Models", body, "Models", is_live=True)


def _filter(wanted: str) -> Html:
    field = h(
        "input", type="search", name="q", value=wanted, id="filter", autocomplete="off",
        aria_keyshortcuts="/", placeholder="part of a name",
    )  # fmt: skip
    label = h("label", "Filter ", field)
    return h("form", label, h("button", "Show"), method="get", role="search", class_="row")


def _models_table(
    facts: Facts, models: Sequence[ModelVersion], activity: Mapping[Key, ModelRates]
) -> Html:
    speeds = facts.speeds()
    rows = (
        _row(facts, each, activity.get(_key(each)), speeds.get(_key(each), {})) for each in models
    )
    hint = "no models; register one: braid register NAME FILE --wait"
    return table(COLUMNS, rows, right=NUMBERS, caption="Models", empty=hint)


def _key(model: ModelVersion) -> Key:
    return model.name, str(model.version)


def _row(
    facts: Facts,
    model: ModelVersion,
    now: ModelRates | None,
    speeds: Mapping[tuple[str, int], Speed],
) -> Sequence[Child]:
    page = url("models", model.name, version=model.version)
    several = len({device for device, _ in speeds}) > 1
    faster = "; ".join(
        f"{f'{device}/' if several else ''}{size}: {speed_text(speeds[device, size])}"
        for device, size in sorted(speeds)
    )
    return (
        h("a", model.name, href=page),
        model.version,
        state(model.state.value),
        *_activity_cells(now),
        facts.waiting(model),
        faster or "–",
    )


def _activity_cells(now: ModelRates | None) -> tuple[str, str, str, str]:
    if now is None:
        return "–", "–", "–", "–"
    return (
        f"{now.requests_per_s:.1f}",
        duration(None if now.p50_s is None else now.p50_s * 1e6),
        duration(None if now.p99_s is None else now.p99_s * 1e6),
        f"{now.failures_per_s:.1f}",
    )


async def one_model(facts: Facts, name: str, version: str, *, is_admin: bool) -> Page:
    """Return the page of one version: inputs, outputs, rates, schedules, jobs."""
    versions = await facts.queries.versions(name)
    model = await facts.queries.find(name, version)
    schedules = await facts.queries.schedules(model)
    body = h(
        "div",
        _versions(versions, model),
        live("now", await _now(facts, model)),
        _about(facts, model),
        h("h2", "Schedules"),
        live("schedules", _schedules(facts, model, schedules)),
        [_candidates(each) for each in schedules],
        h("h2", "Jobs"),
        live("jobs", await _jobs(facts, model)),
        _actions(model, schedules) if is_admin else None,
    )
    return Page(f"{model.name} version {model.version}", body, "Models", is_live=True)


def _versions(versions: Sequence[ModelVersion], shown: ModelVersion) -> Html | None:
    if len(versions) < 2:
        return None
    links = [
        h("a", f"version {each.version}", href=url("models", each.name, version=each.version),
          aria_current="page" if each.version == shown.version else None)
        for each in reversed(versions)
    ]  # fmt: skip
    return h("nav", links, class_="row", aria_label="Versions")


async def _now(facts: Facts, model: ModelVersion) -> Html:
    now = (await facts.activity()).get(_key(model))
    rate, p50, p99, failures = _activity_cells(now)
    return tiles(
        ("state", state(model.state.value)),
        ("requests/s", rate),
        ("p50", p50),
        ("p99", p99),
        ("failures/s", failures),
        ("waiting", facts.waiting(model)),
    )


def _about(facts: Facts, model: ModelVersion) -> Html:
    served = facts.served(model)
    specs: list[tuple[str, Child]] = []
    if served is not None:
        specs = [
            ("inputs", _specs(served.inputs)),
            ("outputs", _specs(served.output_specs)),
            ("batching", "requests share batches" if served.batched else "one request at a time"),
            ("warnings", [h("p", text) for text in served.warnings] or ""),
        ]
    return pairs(
        ("message", model.message),
        *specs,
        ("batch sizes", ", ".join(map(str, model.options.batch_sizes))),
        ("planner", model.options.planner.text),
        ("precision", _precision(model)),
        ("file", f"{model.size_bytes / 2**20:.1f} MiB"),
        ("SHA-256", h("code", model.sha256)),
        ("registered", moment(model.created_unix)),
    )


def _precision(model: ModelVersion) -> str:
    accepted = model.options.accepted_error
    also = "" if accepted is None else f", errors up to {accepted:.2g} accepted"
    return model.options.precision + also


def _specs(specs: Mapping[str, TensorType]) -> list[Html]:
    return [h("div", h("code", name), f" {spec}") for name, spec in specs.items()]


def _schedules(facts: Facts, model: ModelVersion, schedules: Sequence[Placed]) -> Html:
    columns = ("batch", "device", "planner", "stages", "groups", "sequential (spread)",
               "scheduled (spread)", "speed-up", "live / profiled", "serves")  # fmt: skip
    rows = (_schedule_row(facts, model, each) for each in schedules)
    hint = "no schedule yet: the sequential plan serves"
    return table(columns, rows, right=(*columns[:1], *columns[3:9]), caption="Schedules",
                 empty=hint)  # fmt: skip


def _schedule_row(facts: Facts, model: ModelVersion, placed: Placed) -> Sequence[Child]:
    schedule = placed.schedule
    seen, size = schedule.provenance, schedule.key.batch_size
    page = url("schedules", model.name, model.version, size, device=placed.device)
    drift = facts.drift(model, placed)
    return (
        h("a", str(size), href=page),
        placed.device,
        schedule.planner,
        len(schedule.stages),
        sum(len(stage.groups) for stage in schedule.stages),
        latency(seen.sequential_us, schedule.sequential_spread),
        latency(seen.measured_us, seen.spread),
        speed_text(schedule.speed, "–"),
        "–" if drift is None else f"{drift:.2f}",
        _serves(schedule),
    )


def _serves(schedule: Schedule) -> str:
    if not schedule.provenance.promoted:
        return f"sequential: {schedule.provenance.reason}"
    return RUNTIMES.get(schedule.runtime, "schedule")


def _candidates(placed: Placed) -> Html | None:
    """Return all plans that were measured, as bars on one scale, the fastest first."""
    schedule = placed.schedule
    found = sorted(schedule.provenance.candidates, key=lambda each: each.latency_us or math.inf)
    if not found:
        return None
    longest = max(each.latency_us or 0.0 for each in found)
    title = f"Candidates compared, batch {schedule.key.batch_size}, {placed.device}"
    columns = ("plan", "", "latency (spread)", "speed-up", "runs", "error", "remark")
    rows = (_candidate_row(schedule, each, longest) for each in found)
    return h("section", h("h3", title),
             table(columns, rows, right=columns[2:6], caption=title))  # fmt: skip


def _candidate_row(schedule: Schedule, one: Contender, longest: float) -> Sequence[Child]:
    took = latency(one.latency_us, one.spread)
    bar = None
    if one.latency_us is not None:
        bar = h("meter", took, value=one.latency_us, min=0, max=longest, aria_label=one.name)
    serves = one is schedule.chosen and schedule.provenance.promoted
    remarks = [
        "serves" if serves else "",
        one.remark,
        f"same plan: {', '.join(one.also)}" if one.also else "",
    ]
    return (
        one.name,
        bar,
        took,
        speed_text(one.speed, "–"),
        one.runs,
        "–" if one.max_rel_error is None else f"{one.max_rel_error:.1e}",
        "; ".join(filter(None, remarks)),
    )


async def _jobs(facts: Facts, model: ModelVersion) -> Html:
    jobs = [each for each in await facts.jobs(model.name) if each.version == model.version]
    rows = (
        (h("a", each.id, href=url("jobs", each.id)), state(each.state.value),
         f"{each.progress:.0%}", moment(each.updated_unix), each.message or each.detail)
        for each in jobs
    )  # fmt: skip
    return table(("job", "state", "done", "changed", "detail"), rows, right=("done",),
                 caption="Jobs of this version")  # fmt: skip


def _actions(model: ModelVersion, schedules: Sequence[Placed]) -> Html:
    where = ("models", model.name, model.version)
    return h(
        "div",
        action("Profile again", url(*where, "profile")) if schedules else None,
        action(
            "Delete this version",
            url(*where, "delete"),
            confirm=f"Delete {model.name} version {model.version}?",
            danger=True,
        ),
        class_="row actions",
    )
