"""Comparison of whole models: errors and latency of each contender.

    each once: errors ──wrong or failing ones leave──> rounds, all contenders in turns (rounds.py)

Contender 0 is the baseline and always stays. The numerical reference is none of the contenders: it
is the plain interpreter over registry kernels in fp32.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from braid.core.errors import BraidError, DeviceLost, InvalidRequest, WorkerFault
from braid.core.measurement import PlanMeasurement
from braid.engine.runtime.arrays import Arrays, holds_floats
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.timing.contenders import TimedContender
from braid.engine.timing.rounds import RoundOptions, run_rounds
from braid.engine.timing.samples import reduce_samples


@dataclass(frozen=True, slots=True)
class Check:
    """Inputs to find errors on, and what the reference makes of them."""

    inputs: Arrays
    reference: Arrays
    samples: int = 0  # rows whose top class counts; 0: these are seeded inputs


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Tolerance and rounds of a comparison."""

    tolerance: float  # of outputs, relative to the largest element; above it a contender runs once
    rounds: RoundOptions = field(default_factory=RoundOptions)

    @staticmethod
    def brief(tolerance: float) -> ComparisonOptions:
        """Options to tell within a few runs who is hopeless."""
        return ComparisonOptions(tolerance, RoundOptions(3, turn_s=0.01))


def compare(
    contenders: Sequence[TimedContender],
    checks: Iterable[Check],
    options: ComparisonOptions,
    pause: YieldToRequests = no_pause,
) -> Generator[float, None, list[PlanMeasurement]]:
    """Measure contenders, the first being the baseline; yields the fraction done after each run.

    Errors are found on all ``checks``, read one after the other; runs are timed on the first one's
    inputs. Raises ``WorkerFault`` if the baseline does not run.
    """
    inputs: Arrays | None = None
    for check in checks:
        inputs = check.inputs if inputs is None else inputs
        for contender in contenders:
            _check(contender, check, pause)
            yield 0.0
    assert inputs is not None, "nothing to find errors on"
    if contenders[0].problem:
        raise WorkerFault(f"the baseline does not run: {contenders[0].problem}")
    error = contenders[0].max_rel_error or 0.0
    least = error if isfinite(error) else 0.0
    right = [x for x in contenders if x is contenders[0] or _is_right(x, options, least)]
    staying = yield from run_rounds(right, inputs, options.rounds, pause)
    return [_result(contender, contenders[0], contender in staying) for contender in contenders]


def _is_right(contender: TimedContender, options: ComparisonOptions, baseline: float) -> bool:
    """Whether a contender runs, and errs by no more than it may, or than the baseline does."""
    allowed = options.tolerance if contender.tolerance is None else contender.tolerance
    return not contender.problem and (contender.max_rel_error or 0.0) <= max(allowed, baseline)


def _check(contender: TimedContender, check: Check, pause: YieldToRequests) -> None:
    """Run a contender, the first time to warm up, and note its errors or its problem."""
    if contender.problem:
        return
    try:
        outputs = contender.run(check.inputs, pause).outputs
        found_abs, found_rel = errors(outputs, check.reference)
        contender.max_abs_error = max(contender.max_abs_error or 0.0, found_abs)
        contender.max_rel_error = max(contender.max_rel_error or 0.0, found_rel)
        if check.samples:
            compared, agreed = same_top_class(outputs, check.reference, check.samples)
            contender.compared += compared
            contender.agreed += agreed
    except DeviceLost:
        raise
    except BraidError as error:
        contender.problem = str(error)


def errors(got: Arrays, reference: Arrays) -> tuple[float, float]:
    """Largest absolute error over all outputs, and largest relative to its output's maximum.

    A NaN or infinity in one only is an infinite error; another shape an ``InvalidRequest``.
    """
    max_abs = max_rel = 0.0
    for name, expected in reference.items():
        if got[name].shape != expected.shape:
            raise InvalidRequest(
                f"output {name!r} is {list(got[name].shape)}, not {list(expected.shape)}"
            )
        want, have = expected.astype(np.float64), got[name].astype(np.float64)
        same = (want == have) | (np.isnan(want) & np.isnan(have))
        with np.errstate(invalid="ignore"):  # infinity less infinity
            gap = np.where(same, 0.0, abs(want - have))
        gap[np.isnan(gap)] = np.inf
        largest = float(abs(want[np.isfinite(want)]).max(initial=0.0))
        worst = float(gap.max(initial=0.0))
        max_abs = max(max_abs, worst)
        max_rel = max(max_rel, worst / largest if largest else worst)
    return max_abs, max_rel


def same_top_class(got: Arrays, reference: Arrays, rows: int) -> tuple[int, int]:
    """Count rows of outputs that look like classes, and those with the reference's top class.

    Such an output is of floats, with rows of several numbers. Of several such outputs each counts.
    """
    compared = agreed = 0
    for name, expected in reference.items():
        shape = list(expected.shape)
        while len(shape) > 2 and shape[-1] == 1:
            shape.pop()
        if not holds_floats(expected) or len(shape) != 2 or shape[1] < 2:
            continue
        want = expected.reshape(shape)[:rows].argmax(1)
        have = got[name].reshape(shape)[:rows].argmax(1)
        compared, agreed = compared + len(want), agreed + int((want == have).sum())
    return compared, agreed


def _result(contender: TimedContender, baseline: TimedContender, stayed: bool) -> PlanMeasurement:
    samples, turns_us = contender.all_us, contender.medians_us
    usual_us = baseline.medians_us[: len(turns_us)]
    timing = reduce_samples(samples) if samples else None
    ratios = [usual / turn for usual, turn in zip(usual_us, turns_us, strict=True)]
    return PlanMeasurement(
        latency_us=timing.latency_us if timing else None,
        spread=timing.spread if timing else None,
        runs=len(samples),
        ratios=tuple(ratios),
        max_abs_error=contender.max_abs_error,
        max_rel_error=contender.max_rel_error,
        problem=contender.problem,
        activation_bytes=None if contender.problem else contender.activation_bytes(),
        turns_us=tuple(turns_us) if stayed else (),
        top_agreement=contender.agreed / contender.compared if contender.compared else None,
    )
