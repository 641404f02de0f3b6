"""Small pictures on a model's page and the front page: latency over time, lengths of requests.

Colours are in ``assets/console.css``, as the pages may have no styles of their own.
"""

from __future__ import annotations

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

    def line(kind: str, values_s: Sequence[float]) -> str:
        places = [
            f"{WIDTH * (1 - point.age_s / SPAN_SECONDS):.0f},"
            f"{HEAD + HEIGHT * (1 - value_s / most_s):.0f}"
            for point, value_s in zip(points, values_s, strict=True)
        ]
        dots = "".join(
            '<circle class="{}" cx="{}" cy="{}" r="2"/>'.format(kind, *place.split(","))
            for place in places
        )
        return f'<polyline class="{kind}" points="{" ".join(places)}"/>{dots}'

    last = points[-1]
    text = f"p50 {duration(last.p50_s * 1e6)}, p99 {duration(last.p99_s * 1e6)}"
    top = f"p99 at most {duration(most_s * 1e6)}"
    return _svg(
        f"Latency of the last ten minutes: {text} at last, {top}",
        f'<text x="0" y="12">{top}</text>'
        f'<text x="{WIDTH}" y="12" text-anchor="end">at last {text}</text>'
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
    size = f'viewBox="-2 0 {WIDTH + 4} {HEAD + HEIGHT + 22}"'
    return Markup(
        f'<svg class="graph" role="img" aria-label="{escape(label)}" {size}>{content}</svg>'
    )
