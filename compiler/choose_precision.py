"""Which plan serves where several precisions run against each other, by what was measured of all.

    fp32   sequential, plans, runtimes ──held to the tolerance of FP32──┐
    bf16   sequential, plans, runtimes ──held to the accepted error────┴─> the fastest that is right

All are compared with the sequential plan in FP32, which always may serve. A narrower precision has
to be faster by ``PRECISION_GAIN``: it errs more. A precision whose own sequential plan errs too
much takes no part, with no runtime either: where that cannot run, the plan would have to.
Candidates that service chooses from are of the chosen precision.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid.compiler.choose_plan import (
    ComparedPlans,
    PlanChoice,
    choose_among,
    contenders_of,
    fit_to_serve,
    speeds_of,
)
from braid.core.margins import PRECISION_GAIN
from braid.core.measurement import PlanMeasurement


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
    contenders = tuple(contender for part in parts for contender in part)
    refused = {index for span in spans[1:] if contenders[span.start].remark for index in span}
    fit = [index for index in fit_to_serve(contenders, measurements) if index not in refused] or [0]
    speeds = speeds_of(measurements)
    best: PrecisionChoice | None = None
    for rank, (field, span) in enumerate(zip(fields, spans, strict=True)):
        if own := [index - span.start for index in fit if index in span]:
            found = choose_among(field, contenders, measurements[span.start : span.stop], own)
            chosen, fallback = span.start + found.chosen, span.start + found.fallback
            others = tuple(span.start + index for index in found.others)
            if best is None or speeds[chosen] * (1.0 - PRECISION_GAIN) > speeds[best.choice.chosen]:
                choice = PlanChoice(contenders, chosen, fallback, others=others)
                best = PrecisionChoice(choice, rank, found.fallback)
    assert best is not None, "one is always fit"
    return best


def _spans(fields: Sequence[ComparedPlans]) -> Iterator[range]:
    """Indices of the contenders of each precision among those of all."""
    first = 0
    for field in fields:
        following = first + len(field.planned) + len(field.runtimes)
        yield range(first, following)
        first = following
