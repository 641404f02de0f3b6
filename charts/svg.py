"""Timelines as SVG: one picture, several tracks on one time axis, no script and no outside asset.

Legible in black and white: families of units differ in hatching, stages are numbered, a merged
stage has a double frame. Pointing at a unit or a stage shows its shapes, times and kernel
(``<title>`` elements). Follows the reader's light or dark theme.
"""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from statistics import median

from braid.charts.kinds import ENGINES, FAMILIES, OTHER, OTHER_ENGINE, Family, family_of, kind_text
from braid.charts.timeline import Bar, StageSpan, Timeline, describe_unit
from braid.core.graph import OpGraph
from braid.core.runtimes import RUNTIMES

GUTTER, MARGIN, MIN_WIDTH, STAGE_WIDTH = 86, 14, 1060, 40
LANE, BAR, HEAD, GAP = 30, 24, 44, 18
CHARACTER = 6.3  # of the small font, in units of the picture
BAND = 5  # height of the mark of an engine, at the foot of a bar
LEGIBLE, MAX_WIDTH = 6, 32_000
ZOOMS = (1, 2, 4, 8, 16, 32)
"""Widths of the time axis, as multiples of the usual one."""

STYLE = """
svg.braid{font:11px system-ui,sans-serif;--ink:#1a1a1a;--soft:#6b6b6b;--line:#b5b5b5;--page:#fff}
@media (prefers-color-scheme:dark){svg.braid{--ink:#eee;--soft:#aaa;--line:#666;--page:#16181c}}
svg.braid .page{fill:var(--page)} svg.braid text{fill:var(--ink)}
svg.braid .soft{fill:var(--soft)} svg.braid .bar text,svg.braid .legend text.in{fill:#111}
svg.braid .bar rect{stroke:#222;stroke-width:.8} svg.braid .bar:hover rect{stroke-width:2.4}
svg.braid .rule{stroke:var(--line);stroke-width:1;fill:none}
svg.braid .edge{stroke:var(--ink);stroke-width:1;stroke-dasharray:4 3}
svg.braid .merge{stroke:var(--ink);stroke-width:2;fill:none}
svg.braid .title{font-weight:600;font-size:13px}
"""


def legible_zoom(tracks: Sequence[Timeline]) -> int:
    """Return the least of ZOOMS at which most units can be told apart.

    It is 1 unless few units take nearly all of the time.
    """
    bars = [bar.duration_us for track in tracks for bar in track.bars]
    if not bars:
        return 1
    longest, width = _extent(tracks)
    needed = LEGIBLE * longest / (median(bars) * width)
    drawable = [zoom for zoom in ZOOMS if zoom == 1 or zoom * width <= MAX_WIDTH]
    return next((zoom for zoom in drawable if zoom >= needed), drawable[-1])


def _extent(tracks: Sequence[Timeline]) -> tuple[float, float]:
    """Return the length of the axis, in microseconds and in units of the picture at zoom 1."""
    longest = max(track.makespan_us for track in tracks) or 1.0
    stages = max(len(track.stages) for track in tracks)
    return longest, max(MIN_WIDTH - GUTTER - MARGIN, STAGE_WIDTH * stages)


def timeline_svg(
    tracks: Sequence[Timeline], graphs: Sequence[OpGraph], heading: str, zoom: int = 1
) -> str:
    """Draw tracks, at least one, below each other on one axis of ``zoom`` times the usual width."""
    longest, axis = _extent(tracks)
    width = GUTTER + MARGIN + axis * zoom
    scale = axis * zoom / longest
    parts: list[str] = []
    y = 34.0
    for track, graph in zip(tracks, graphs, strict=True):
        parts += _track(track, graph, y, scale)
        y += HEAD + LANE * track.lanes + GAP
    parts += _axis(longest, scale, y, ticks=8 * zoom)
    parts += _legend(_families(tracks, graphs), y + 34)
    parts += _engines(tracks, y + 52)
    if any(track.is_estimated for track in tracks):
        parts.append(
            f'<text class="soft" x="{GUTTER}" y="{y + 84:.0f}">Lengths inside stages are estimated '
            "for units that were not measured alone; stages are as measured.</text>"
        )
    height = y + 96
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="braid" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'aria-label="{escape(heading)}"><style>{STYLE}</style><defs>{_patterns()}</defs>'
        f'<rect class="page" width="100%" height="100%"/>'
        f'<text class="title" x="{MARGIN}" y="20">{escape(heading)}</text>\n{body}\n</svg>\n'
    )


def _track(track: Timeline, graph: OpGraph, y: float, scale: float) -> Iterator[str]:
    total = f"makespan {time_text(track.makespan_us)}"
    if track.measured_us is not None:
        total += f", measured as a whole {time_text(track.measured_us)}"
    yield (
        f'<text x="{GUTTER}" y="{y + 12:.0f}"><tspan class="title">{escape(track.title)}</tspan>'
        f'<tspan class="soft" dx="10">{escape(total)}</tspan></text>'
    )
    top, bottom = y + HEAD, y + HEAD + LANE * track.lanes
    for lane in range(track.lanes):
        label_y = top + LANE * lane + 17
        yield f'<text class="soft" x="{MARGIN}" y="{label_y:.0f}">stream {lane}</text>'
    for bar in track.bars:
        yield _bar(bar, graph, top, scale)
    for span in track.stages:
        yield from _stage(span, top, bottom, scale)
    end = GUTTER + track.makespan_us * scale
    yield f'<line class="edge" x1="{end:.1f}" x2="{end:.1f}" y1="{y + 20:.0f}" y2="{bottom:.0f}"/>'


def _bar(bar: Bar, graph: OpGraph, top: float, scale: float) -> str:
    """Draw one unit; pointing at it shows all that is known of it."""
    op = graph.operators[bar.unit]
    family = family_of(op)
    x, width = GUTTER + bar.start_us * scale, max(bar.duration_us * scale, 0.8)
    y = top + LANE * bar.lane + 2
    alone = "never measured alone" if bar.alone_us is None else f"alone {time_text(bar.alone_us)}"
    facts = [*describe_unit(graph, bar.unit), f"here {time_text(bar.duration_us)}, {alone}"]
    if bar.stage is not None and bar.group is not None:
        facts.insert(1, f"stage {bar.stage}, group {bar.group + 1}")
    if bar.runs_in:
        known = "its share of the stage is" if bar.stage else "the times are those"
        facts.append(f"runs in {bar.runs_in}; {known} on own kernels")
    label = _fitted(_short(op.name), kind_text(op), width)
    text = f'<text x="{x + 3:.1f}" y="{y + 16:.0f}">{escape(label)}</text>' if label else ""
    box = f'x="{x:.2f}" y="{y:.0f}" width="{width:.2f}" height="{BAR}"'
    hatching = f'<rect {box} fill="url(#{_pattern_id(family)})"/>' if family.hatching else ""
    if bar.engine:
        band = f'x="{x:.2f}" y="{y + BAR - BAND:.0f}" width="{width:.2f}" height="{BAND}"'
        hatching += f'<rect {band} fill="{ENGINES.get(bar.engine, OTHER_ENGINE)}"/>'
    return (
        f'<g class="bar" data-unit="{bar.unit}" data-start="{bar.start_us:.3f}" '
        f'data-us="{bar.duration_us:.3f}"><title>{escape(chr(10).join(facts))}</title>'
        f'<rect {box} fill="{family.fill}"/>{hatching}{text}</g>'
    )


def _stage(span: StageSpan, top: float, bottom: float, scale: float) -> Iterator[str]:
    """The border of a stage, its number, and a double frame if it is one merged kernel."""
    x, width = GUTTER + span.start_us * scale, span.duration_us * scale
    groups = f"{len(span.groups)} group{'s' if len(span.groups) > 1 else ''}"
    facts = f"stage {span.number}: {span.strategy}, {groups}, {time_text(span.duration_us)}"
    long = f"{span.number} · {groups} · {time_text(span.duration_us)}"
    if span.strategy == "merge":
        long = f"{span.number} merged · {time_text(span.duration_us)}"
        yield (
            f'<rect class="merge" x="{x + 1.5:.1f}" y="{top - 2:.0f}" '
            f'width="{max(width - 3, 1):.1f}" height="{bottom - top + 2:.0f}" rx="3"/>'
        )
    label = next((t for t in (long, str(span.number)) if len(t) * CHARACTER <= width - 4), "")
    yield (
        f'<g class="stage" data-stage="{span.number}" data-us="{span.duration_us:.3f}">'
        f"<title>{escape(facts)}</title>"
        f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 20:.0f}" y2="{bottom:.0f}"/>'
        f'<text x="{x + 3:.1f}" y="{top - 8:.0f}">{escape(label)}</text></g>'
    )


def _axis(longest: float, scale: float, y: float, ticks: int) -> Iterator[str]:
    step = _round_step(longest / ticks)
    for number in range(floor(longest / step) + 1):
        x = GUTTER + number * step * scale
        yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.0f}" y2="{y + 5:.0f}"/>'
        yield f'<text x="{x:.1f}" y="{y + 17:.0f}">{time_text(number * step)}</text>'
    end = GUTTER + longest * scale
    yield f'<line class="rule" x1="{GUTTER}" x2="{end:.1f}" y1="{y:.0f}" y2="{y:.0f}"/>'


def _round_step(raw: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below ``raw``."""
    power: float = 10.0 ** floor(log10(raw))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= raw * 0.999)


def _families(tracks: Sequence[Timeline], graphs: Sequence[OpGraph]) -> list[Family]:
    drawn = {
        family_of(graph.operators[bar.unit])
        for track, graph in zip(tracks, graphs, strict=True)
        for bar in track.bars
    }
    return [family for family in (*FAMILIES, OTHER) if family in drawn]


def _legend(families: Sequence[Family], y: float) -> Iterator[str]:
    x = float(GUTTER)
    for family in families:
        box = f'x="{x:.0f}" y="{y:.0f}" width="22" height="14" stroke="#222"'
        hatching = f'<rect {box} fill="url(#{_pattern_id(family)})"/>' if family.hatching else ""
        yield (
            f'<g class="legend"><rect {box} fill="{family.fill}"/>{hatching}'
            f'<text x="{x + 28:.0f}" y="{y + 11:.0f}">{family.name}</text></g>'
        )
        x += 46 + ceil(len(family.name) * CHARACTER)


def _engines(tracks: Sequence[Timeline], y: float) -> Iterator[str]:
    """Legend of the bands under units that engines run."""
    drawn = dict.fromkeys(bar.engine for track in tracks for bar in track.bars if bar.engine)
    x = float(GUTTER)
    for engine in drawn:
        name = RUNTIMES.get(engine, engine)
        yield (
            f'<g class="legend"><rect x="{x:.0f}" y="{y + 5:.0f}" width="22" height="{BAND}" '
            f'fill="{ENGINES.get(engine, OTHER_ENGINE)}"/>'
            f'<text x="{x + 28:.0f}" y="{y + 11:.0f}">in {escape(name)}</text></g>'
        )
        x += 56 + ceil(len(name) * CHARACTER)


def _patterns() -> str:
    return "".join(
        f'<pattern id="{_pattern_id(family)}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{family.hatching}" stroke="#444" stroke-opacity=".45" fill="none"/></pattern>'
        for family in (*FAMILIES, OTHER)
        if family.hatching
    )


def _pattern_id(family: Family) -> str:
    return "h-" + "".join(c if c.isalpha() else "-" for c in family.name)


def _short(name: str) -> str:
    """A unit's name without what its kind says anyway: ``/fire2/squeeze/Conv`` is fire2/squeeze."""
    name = name.strip("/")
    rest, _, last = name.rpartition("/")
    return rest if rest and last.isalpha() else name


def _fitted(name: str, kind: str, width: float) -> str:
    """End of a label, as much as fits, since names differ at their ends; empty if too little."""
    room = int((width - 6) / CHARACTER)
    if len(name) + len(kind) + 1 <= room:
        return f"{name} {kind}"
    if len(name) <= room:
        return name
    return f"…{name[-(room - 1) :]}" if room >= 4 else ""


def time_text(us: float) -> str:
    """A time with a unit that suits it: ``0``, ``8.2 us``, ``640 us``, ``2.31 ms``."""
    if us < 100:
        return f"{us:.3g} us" if us else "0"
    return f"{us:.0f} us" if us < 1000 else f"{us / 1000:.4g} ms"
