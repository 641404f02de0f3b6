"""The pages about schedules: one with its timeline, and two compared."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from braid.charts.difference import compare
from braid.charts.kinds import kind_text
from braid.charts.svg import ZOOMS, legible_zoom
from braid.core.measurement import interval_text
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Stage, schedule_to_json
from braid.server.console import pictures
from braid.server.console.facts import Facts, ScheduleAddress
from braid.server.console.formats import plan_names
from braid.server.console.pictures import Drawn
from braid.server.console.rendering import Page
from braid.server.models.queries import Placed


async def one_schedule(facts: Facts, at: ScheduleAddress, zoom: int | None) -> Page:
    """Return the page of a schedule: timelines, where the plan came from, its stages.

    ``zoom``: of ZOOMS; None: as much as makes most units legible.
    """
    model, placed = await facts.schedule(at)
    schedule = placed.schedule
    which = await facts.drawn(model, placed, at.block)
    chosen, picture = await asyncio.to_thread(_picture, which, zoom)
    blocks = len(await asyncio.to_thread(pictures.blocks_of, schedule, which.graph))
    asked, made_by = plan_names([schedule.key.planner]), plan_names([schedule.planner])
    shown = {
        "at": at,
        "model": model,
        "device": placed.device,
        "schedule": schedule,
        "runtime": RUNTIMES.get(schedule.runtime, ""),
        "picture": picture,
        "blocks": range(1, blocks + 1) if blocks > 1 else (),
        "block": blocks + 1 + at.block if at.block and at.block < 0 else at.block,
        "zooms": ZOOMS,
        "zoom": chosen,
        "others": _others(placed, await facts.queries.schedules(model)),
        "asked": asked[schedule.key.planner],
        "made": made_by[schedule.planner],
        "stages": list(_stages(which)),
        "contest": placed.contest,
        "interval": interval_text,
    }
    title = f"Schedule of {model.name}, batch {at.batch_size}{at.shapes and f' at {at.shapes}'}"
    return Page("schedule.html", title, shown, "Models")


def _picture(which: Drawn, zoom: int | None) -> tuple[int, Markup]:
    zoom = zoom or legible_zoom(which.tracks)
    return zoom, Markup(pictures.svg(which, zoom))


def _others(shown: Placed, all_of_model: Sequence[Placed]) -> list[tuple[str, Placed]]:
    def size(of: Placed) -> int:
        return of.schedule.key.batch_size

    return [
        (f"batch {size(plan)}{'' if plan.device == shown.device else f' on {plan.device}'}", plan)
        for plan in all_of_model
        if plan.schedule.key.shapes == shown.schedule.key.shapes
        and (plan.device, size(plan)) != (shown.device, size(shown))
    ]


def _stages(which: Drawn) -> Iterator[tuple[int, Stage, Sequence[str]]]:
    """Yield number, stage and units of each group, of the stages in the drawn part."""
    wanted = None if which.units is None else set(which.units)
    for number, stage in enumerate(which.schedule.stages, start=1):
        if wanted is not None and not wanted & set(stage.operators):
            continue
        groups = [
            " → ".join(f"{op.name} ({kind_text(op)})" for op in ops)
            for ops in ([which.graph.operators[unit] for unit in group] for group in stage.groups)
        ]
        yield number, stage, groups


async def comparison(facts: Facts, first: ScheduleAddress, second: ScheduleAddress) -> Page:
    sides = [await facts.drawn(*await facts.schedule(at)) for at in (first, second)]
    difference = compare(sides[0].schedule, sides[1].schedule)
    shown = {
        "first": first,
        "second": second,
        "picture": Markup(await asyncio.to_thread(pictures.compared_svg, *sides, is_legible=True)),
        "lines": list(pictures.difference_lines(*sides)),
        "rows": list(pictures.difference_rows(difference)),
    }
    title = f"{first.model}: batch {first.batch_size} against {second.batch_size}"
    return Page("compare.html", title, shown, "Models")


async def download(facts: Facts, at: ScheduleAddress, kind: str) -> tuple[str, str, str]:
    """Return a schedule as (file name, content type, text); ``kind`` is json, svg or perfetto."""
    model, placed = await facts.schedule(at)
    stem = f"{model.name}-{model.version}-batch{at.batch_size}"
    if at.shapes:
        stem += "-" + "-".join(re.findall(r"\w+", placed.schedule.key.shapes))
    if kind == "json":
        shown = schedule_to_json(placed.schedule)
        document = await asyncio.to_thread(json.dumps, shown, indent=2)
        return f"{stem}.schedule.json", "application/json", document
    which = await facts.drawn(model, placed, at.block)
    if kind == "svg":
        return f"{stem}.svg", "image/svg+xml", await asyncio.to_thread(pictures.svg, which)
    trace = await asyncio.to_thread(pictures.trace, which)
    return f"{stem}.perfetto.json", "application/json", await asyncio.to_thread(json.dumps, trace)
