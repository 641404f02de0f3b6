"""What the reference of calibrated networks tells apart: answers by other grids, units, biases."""

import base64
from typing import Any

import numpy as np
import pytest

from campaigns.exact.calibrated import Calibrated, samples_of
from campaigns.exact.checking import compared
from campaigns.exact.drawing import Drawn, draw, rows
from campaigns.exact.steps import Array, Interval, evaluated

SEEDS = (0, 2, 4, 6)  # networks that answer with each step's result


def told(drawn: Drawn, **others: Any) -> dict[str, Any]:
    """Ranges over the samples, of every value; no unit stays wide, no bias is corrected."""
    values = {"x": Interval.exact(samples_of(drawn, 0))}
    for step in drawn.steps:
        values[step.output] = evaluated(step, [values[name] for name in step.inputs])
    ranges = {name: (value.low.min(), value.low.max()) for name, value in values.items()}
    hidden = {step.output for step in drawn.steps if step.feeds_sum}
    shown = {name: ends for name, ends in ranges.items() if name not in hidden}
    return {"ranges": shown, "wide": [], "shifts": {}, **others}


def answers(network: Calibrated, x: Array) -> dict[str, Array]:
    """Numbers in the middle of what the reference allows."""
    values, found = {"x": network.entered(x)}, {}
    for step in network.drawn.steps:
        operands = [network.read(step, name, values[name]) for name in step.inputs]
        found[step.output] = evaluated(step, operands).middle.astype(np.float32)
        values[step.output] = Interval.exact(found[step.output])
    return {name: found[name] for name in network.drawn.shown()}


def outside(seed: int, *, served: dict[str, Any], reference: dict[str, Any]) -> float:
    """Part of the numbers of one quantisation that the reference of another does not allow."""
    drawn = draw(seed)
    x = rows(drawn, 8, 3)
    made = answers(Calibrated.of(drawn, served), x)
    found = compared(Calibrated.of(drawn, reference), x, made)
    return found.outside / found.numbers


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_of_the_same_quantisation_are_allowed(seed: int) -> None:
    right = told(draw(seed))

    assert outside(seed, served=right, reference=right) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_by_other_ranges_units_or_biases_are_not(seed: int) -> None:
    drawn = draw(seed)
    right = told(drawn)
    wider = {name: (low * 1.01, high * 1.01) for name, (low, high) in right["ranges"].items()}
    weighted = [step for step in drawn.steps if step.weight is not None]
    shift = {
        step.output: {
            "step": 1e-4,
            "steps": base64.b64encode(bytes([100] * step.shape[0])).decode(),
        }
        for step in weighted
    }

    for other in (
        told(drawn, ranges=wider),
        told(drawn, wide=[step.output for step in weighted]),
        told(drawn, shifts=shift),
    ):
        assert outside(seed, served=other, reference=right) > 0.05
