"""Which plan serves where several precisions run against each other, by what was measured of all.

    fp32   sequential, plans, runtimes ──held to the tolerance of FP32──┐
    bf16   sequential, plans, runtimes ──held to the accepted error────┴─> the fastest that is right

All are compared with the sequential plan in FP32, which always may serve. A narrower precision has
to be faster without doubt: in a draw the wider one serves. A precision whose own sequential plan
errs too much takes no part, with no runtime either: where that cannot run, the plan would have to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid.compiler.choose_plan import (
    ComparedPlans,
    PlanChoice,
    best_of,
    by_speed,
    contenders_of,
    fit_to_serve,
)
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

    Args:
        fields: what was compared in each precision, the widest first, then narrower ones.
        measurements: of all of them, in the order of ``fields``.
        tolerances: of outputs, one a precision, relative to the largest element.
    """
    spans = list(_spans(fields))
    parts = [
        contenders_of(field, measurements[span.start : span.stop], limit, is_exact=not span.start)
        for field, span, limit in zip(fields, spans, tolerances, strict=True)
    ]
    contenders: list[Contender] = [contender for part in parts for contender in part]
    refused = {index for span in spans[1:] if contenders[span.start].remark for index in span}
    fit = [index for index in fit_to_serve(contenders, measurements) if index not in refused]
    simple = [
        (rank, complexity) for rank, field in enumerate(fields) for complexity in field.complexities
    ]
    chosen = best_of(simple, contenders, measurements, fit or [0])
    rank = next(rank for rank, span in enumerate(spans) if chosen in span)
    fallback = chosen
    if chosen - spans[rank].start >= len(fields[rank].planned):
        fallback = _fastest_own(fields[rank], spans[rank], contenders, fit)
    choice = PlanChoice(tuple(contenders), chosen, fallback, doubt=measurements[0].doubt)
    return PrecisionChoice(choice, rank, fallback - spans[rank].start)


def _spans(fields: Sequence[ComparedPlans]) -> Iterator[range]:
    """Indices of the contenders of each precision among those of all."""
    first = 0
    for field in fields:
        following = first + len(field.planned) + len(field.runtimes)
        yield range(first, following)
        first = following


def _fastest_own(
    field: ComparedPlans, span: range, contenders: Sequence[Contender], fit: Sequence[int]
) -> int:
    """Index of the fastest plan of a precision; of its sequential plan, if no other is fit."""
    own = [at for at, planned in zip(span, field.planned, strict=False) if not planned.plan.parts]
    planned = [index for index in fit if index in own]
    return min(planned, key=lambda index: by_speed(contenders[index]), default=span.start)
