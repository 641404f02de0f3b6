"""The pages about schedules: one with its timeline, and two compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

from braid.charts.difference import compare
from braid.charts.kinds import kind_text
from braid.core.measurement import side_by_side_text, speed_text
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Provenance, Schedule, schedule_to_json
from braid.server.console import pictures
from braid.server.console.facts import Facts, ScheduleAddress
from braid.server.console.pages.html import Child, Html, h, table
from braid.server.console.pages.layout import Page, duration, latency, pairs, url
from braid.server.console.pictures import Drawn
from braid.server.models.queries import Placed
from braid.server.store.records import ModelVersion

RUNTIME_SERVES = (
    "{} runs this model: of all candidates it was the fastest. Drawn is the plan that "
    "would run if it could not."
)


async def one_schedule(facts: Facts, at: ScheduleAddress) -> Page:
    """Return the page of a schedule: timelines, where the plan came from, its stages."""
    model, placed = await facts.schedule(at)
    schedule, block = placed.schedule, at.block
    which = await facts.drawn(model, placed, block)
    picture = await asyncio.to_thread(pictures.svg, which)
    blocks = len(await asyncio.to_thread(pictures.blocks_of, schedule, which.graph))
    where = ("schedules", model.name, model.version, at.batch_size)
    same: dict[str, str | int | None] = {"device": placed.device, "block": block}
    others = await facts.queries.schedules(model)
    body = h(
        "div",
        h("p", RUNTIME_SERVES.format(RUNTIMES[schedule.runtime])) if schedule.runtime else None,
        _block_form(blocks, block, placed.device),
        h("div", Html(picture), class_="scroll picture", tabindex=0, role="region",
          aria_label="Timeline"),
        h("p", "Point at a unit for its shapes, times and kernel. ",
          h("a", "SVG", href=url(*where, "svg", **same)), " ",
          h("a", "Perfetto trace", href=url(*where, "perfetto", **same)), " ",
          h("a", "JSON", href=url(*where, "json", device=placed.device)), class_="note"),
        _compare_links(model, placed, others),
        _provenance(schedule, facts.drift(model, placed)),
        h("h2", "Stages"),
        table(("stage", "strategy", "latency", "group", "units"), _stages(which),
              right=("stage", "latency", "group"), caption="Stages", empty="a plan of streams"),
    )  # fmt: skip
    return Page(f"Schedule of {model.name}, batch {at.batch_size}", body, "Models")


def _block_form(blocks: int, chosen: int | None, device: str) -> Html | None:
    if blocks < 2:
        return None
    options = [h("option", "whole model", value="", selected=chosen is None)]
    options += [
        h(
            "option",
            f"block {number}",
            value=number,
            selected=chosen in (number, number - 1 - blocks),
        )
        for number in range(1, blocks + 1)
    ]
    label = h("label", "Show ", h("select", options, name="block", data_submit="1"))
    same = h("input", type="hidden", name="device", value=device)
    return h("form", same, label, h("button", "Draw"), method="get", class_="row")


def _compare_links(model: ModelVersion, shown: Placed, others: Sequence[Placed]) -> Html | None:
    size = shown.schedule.key.batch_size
    links = [
        h("a", _named(other, shown),
          href=url("compare", model.name, model.version, size, other.schedule.key.batch_size,
                   device=shown.device, against=other.device))
        for other in others
        if (other.device, other.schedule.key.batch_size) != (shown.device, size)
    ]  # fmt: skip
    return h("nav", h("span", "Compare with "), links, class_="row") if links else None


def _named(other: Placed, shown: Placed) -> str:
    where = "" if other.device == shown.device else f" on {other.device}"
    return f"batch {other.schedule.key.batch_size}{where}"


def _provenance(schedule: Schedule, live_ratio: float | None) -> Html:
    """``live_ratio``: live over profiled latency; None: not known."""
    seen = schedule.provenance
    return pairs(
        ("plan", h("code", schedule.plan_id)),
        ("planner", f"{schedule.planner} (asked: {schedule.key.planner})"),
        ("precision", schedule.key.precision),
        ("measured (spread)", latency(seen.measured_us, seen.spread)),
        ("live / profiled", "–" if live_ratio is None else f"{live_ratio:.2f}"),
        ("sequential, same run", latency(seen.sequential_us, schedule.sequential_spread)),
        ("speed-up over sequential", speed_text(schedule.speed, "–")),
        ("side by side, under load", side_by_side_text(seen.side_by_side, "–")),
        ("plan side by side", h("code", schedule.side_by_side_id or "–")),
        ("sum of the stages", duration(seen.predicted_us)),
        ("proved gap", "–" if seen.gap is None else f"{seen.gap:.2%}"),
        ("stages measured", f"{seen.stages_measured}, {seen.stages_reused} found in the store"),
        ("search", f"{seen.search_seconds:.2f} s"),
        ("largest error", _error(seen)),
        ("serves", "yes" if seen.promoted else f"no: {seen.reason}"),
        ("device", schedule.key.device_key),
        ("software", ", ".join(f"{name} {value}" for name, value in seen.software.items())),
        ("made", seen.created),
    )


def _error(seen: Provenance) -> str:
    """Return the error against FP32, relative to the largest element."""
    if seen.max_rel_error is None:
        return "–"
    limit = "" if seen.tolerance is None else f" ({seen.tolerance:.1e} is allowed)"
    return f"{seen.max_rel_error:.1e}{limit}"


def _stages(which: Drawn) -> Iterator[Sequence[Child]]:
    """Yield one row a group; what holds for the whole stage is in the row of its first."""
    wanted = None if which.units is None else set(which.units)
    for number, stage in enumerate(which.schedule.stages, start=1):
        if wanted is not None and not wanted & set(stage.operators):
            continue
        for index, group in enumerate(stage.groups):
            ops = [which.graph.operators[unit] for unit in group]
            units = " → ".join(f"{op.name} ({kind_text(op)})" for op in ops)
            first: Sequence[Child] = ("", "", "")
            if not index:
                first = (number, stage.strategy, duration(stage.latency_us))
            yield (*first, index + 1, units)


async def comparison(facts: Facts, first: ScheduleAddress, second: ScheduleAddress) -> Page:
    """Return the page of two schedules on one axis, and what differs."""
    sides = [await facts.drawn(*await facts.schedule(at)) for at in (first, second)]
    picture = await asyncio.to_thread(pictures.compared_svg, *sides)
    found = compare(sides[0].schedule, sides[1].schedule)
    columns = ("stage", "change", "its units run in", "latency", "latency there")
    body = h(
        "div",
        h("div", Html(picture), class_="scroll picture", tabindex=0, role="region",
          aria_label="Both timelines"),
        [h("p", line) for line in pictures.difference_lines(*sides)],
        table(columns, pictures.difference_rows(found), right=(columns[0], *columns[3:]),
              caption=f"Stages of batch {first.batch_size} that batch {second.batch_size} "
              "does not have",
              empty="every stage is in both"),
    )  # fmt: skip
    title = f"{first.model}: batch {first.batch_size} against {second.batch_size}"
    return Page(title, body, "Models")


async def download(facts: Facts, at: ScheduleAddress, kind: str) -> tuple[str, str, str]:
    """Return a schedule as (file name, content type, text); ``kind`` is json, svg or perfetto."""
    model, placed = await facts.schedule(at)
    stem = f"{model.name}-{model.version}-batch{at.batch_size}"
    if kind == "json":
        document = json.dumps(schedule_to_json(placed.schedule), indent=2)
        return f"{stem}.schedule.json", "application/json", document
    which = await facts.drawn(model, placed, at.block)
    if kind == "svg":
        return f"{stem}.svg", "image/svg+xml", await asyncio.to_thread(pictures.svg, which)
    trace = await asyncio.to_thread(pictures.trace, which)
    return f"{stem}.perfetto.json", "application/json", json.dumps(trace)
