"""Small pictures on a model's page and the front page: latency over time, lengths of requests.

Colours are in ``assets/console.css``, as the pages may have no styles of their own.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from markupsafe import Markup

from braid.server.console.formats import duration
from braid.server.console.rates import MOST_POINTS, POINT_SECONDS, Point

WIDTH, HEIGHT, HEAD = 400, 80, 18
SPAN_SECONDS = MOST_POINTS * POINT_SECONDS


def latency_svg(points: Sequence[Point]) -> Markup:
    """Draw p50 and p99 of the last ten minutes; empty if nobody asked."""
    if not points:
        return Markup()
    most_s = max(point.p99_s for point in points)
    half = 10 ** math.floor(math.log10(most_s)) / 2
    top_s = math.ceil(most_s / half) * half  # round figures at the axis

    def line(kind: str, values_s: Sequence[float]) -> str:
        places = [
            f"{WIDTH * (1 - point.age_s / SPAN_SECONDS):.0f},"
            f"{HEAD + HEIGHT * (1 - value_s / top_s):.0f}"
            for point, value_s in zip(points, values_s, strict=True)
        ]
        dots = "".join(
            '<circle class="{}" cx="{}" cy="{}" r="2"/>'.format(kind, *place.split(","))
            for place in places
        )
        return f'<polyline class="{kind}" points="{" ".join(places)}"/>{dots}'

    last = points[-1]
    p50, p99 = f"p50 {duration(last.p50_s * 1e6)}", f"p99 {duration(last.p99_s * 1e6)}"
    scale, unit = (1, "s") if top_s >= 1 else (1000, "ms")
    axis = "".join(
        f'<line x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>'
        f'<text x="-6" y="{y + 4}" text-anchor="end">{part * top_s * scale:g} {unit}</text>'
        for part in (0, 0.5, 1)
        for y in [HEAD + round(HEIGHT * (1 - part))]
    )
    return _svg(
        f"Latency of the last ten minutes: {p50}, {p99} at last, "
        f"p99 at most {duration(most_s * 1e6)}",
        f'{axis}<text x="0" y="9">latency, a point for each 10 s</text>'
        f'<text x="{WIDTH}" y="9" text-anchor="end">last: <tspan class="p50">● {p50}</tspan>, '
        f'<tspan class="p99">● {p99}</tspan></text>'
        f"{line('p99', [point.p99_s for point in points])}"
        f"{line('p50', [point.p50_s for point in points])}"
        f'<text x="0" y="{HEAD + HEIGHT + 16}">10 minutes ago</text>'
        f'<text x="{WIDTH}" y="{HEAD + HEIGHT + 16}" text-anchor="end">now</text>',
    )


def lengths_svg(axis: str, rows: Mapping[int, int], scheduled: Sequence[int]) -> Markup:
    """Draw a histogram of the lengths of requests; lengths with a schedule stand out."""
    lengths = sorted({*rows, *scheduled})
    most, step = max([1, *rows.values()]), WIDTH / len(lengths)
    every = -(-len(lengths) // 12)  # of the lengths has its number, to be legible
    bars = []
    for place, length in enumerate(lengths):
        high, kind = HEIGHT * rows.get(length, 0) / most, "plain"
        if length in scheduled:
            kind, high = "scheduled", max(high, 2.0)
        about = f"up to {length}: {rows.get(length, 0)} rows"
        about += ", scheduled" if length in scheduled else ""
        bars.append(
            f'<rect class="{kind}" x="{place * step + 1:.1f}" y="{HEAD + HEIGHT - high:.1f}" '
            f'width="{max(step - 2, 1):.1f}" height="{high:.1f}"><title>{about}</title></rect>'
        )
        if place % every == 0:
            x = f"{(place + 0.5) * step:.1f}"
            bars.append(
                f'<text x="{x}" y="{HEAD + HEIGHT + 16}" text-anchor="middle">{length}</text>'
            )
    with_schedule = ", ".join(map(str, scheduled)) or "none"
    return _svg(
        f"Lengths of requests along {axis}; scheduled: {with_schedule}",
        f'<text x="0" y="12">rows, at most {most}; darker: scheduled</text>{"".join(bars)}',
    )


def _svg(label: str, content: str) -> Markup:
    size = f'viewBox="-50 0 {WIDTH + 54} {HEAD + HEIGHT + 22}"'
    return Markup(
        f'<svg class="graph" role="img" aria-label="{escape(label)}" {size}>{content}</svg>'
    )
