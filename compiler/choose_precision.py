"""Which plan serves where several precisions run against each other, by what was measured of all.

    fp32   sequential, plans, runtimes ──held to the tolerance of FP32──┐
    bf16   sequential, plans, runtimes ──held to the accepted error────┴─> the fastest that is right

All are compared with the sequential plan in FP32, which always may serve. A narrower precision has
to be faster by ``PRECISION_GAIN``: it errs more. A precision whose own sequential plan errs too
much takes no part, with no runtime either: where that cannot run, the plan would have to.
Candidates that service chooses from are of the chosen precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid.compiler.choose_plan import (
    ComparedPlans,
    PlanChoice,
    best_of,
    contenders_of,
    fit_to_serve,
    others_of,
    speeds_of,
)
from braid.core.margins import PRECISION_GAIN
from braid.core.measurement import PlanMeasurement
from braid.core.schedule import Contender


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """Contender that serves, and the precision that it is of."""

    choice: PlanChoice  # of the contenders of all precisions
    precision: int  # index of the chosen one
    plan: int  # of its plans: the one that serves, or that runs if another runtime cannot


def choose_precision(
    fields: Sequence[ComparedPlans],
    measurements: Sequence[PlanMeasurement],
    tolerances: Sequence[float],
) -> PrecisionChoice:
    """Choose the contender that serves.

    ``fields``: the widest precision first. ``measurements``: of all, in that order.
    ``tolerances``: of outputs, one a precision, relative to the largest element.
    """
    spans = list(_spans(fields))
    parts = [
        contenders_of(field, measurements[span.start : span.stop], limit, is_exact=not span.start)
        for field, span, limit in zip(fields, spans, tolerances, strict=True)
    ]
    contenders: list[Contender] = [contender for part in parts for contender in part]
    refused = {index for span in spans[1:] if contenders[span.start].remark for index in span}
    fit = [index for index in fit_to_serve(contenders, measurements) if index not in refused] or [0]
    speeds = speeds_of(measurements)
    simple = [complexity for field in fields for complexity in field.complexities]
    rank, chosen = 0, -1
    for at, span in enumerate(spans):
        if own := [index for index in fit if index in span]:
            best = best_of(simple, speeds, own)
            if chosen < 0 or speeds[best] * (1.0 - PRECISION_GAIN) > speeds[chosen]:
                rank, chosen = at, best
    span, field = spans[rank], fields[rank]
    own = [index for index in fit if index in span]
    plans = own if chosen - span.start >= len(field.planned) else [chosen]
    planned = zip(span, field.planned, strict=False)
    single = {at for at, planned_ in planned if not planned_.plan.parts or at == chosen}
    fallback = max(
        (index for index in plans if index in single),
        key=lambda index: speeds[index],
        default=span.start,
    )
    in_span = [index - span.start for index in own]
    beside = others_of(field, measurements[span.start : span.stop], in_span, chosen - span.start)
    others = tuple(span.start + index for index in beside)
    choice = PlanChoice(tuple(contenders), chosen, fallback, others=others)
    return PrecisionChoice(choice, rank, fallback - span.start)


def _spans(fields: Sequence[ComparedPlans]) -> Iterator[range]:
    """Indices of the contenders of each precision among those of all."""
    first = 0
    for field in fields:
        following = first + len(field.planned) + len(field.runtimes)
        yield range(first, following)
        first = following
