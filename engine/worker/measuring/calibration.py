"""How an FP32 model computes on 8-bit integers, found by measuring errors on samples.

    samples ─┬─most──> ranges by each method ─> graphs ─┐
             └─held out──> exact outputs ───────────────┴─> errors ──too large──> units stay wide

Every fourth sample is held out, where there are four. The method with the smallest error is taken,
with biases that make up for the mean of what rounding adds, if that makes the error smaller. If it
is too large, the most sensitive units stay in FP32, as many as it takes: 1, 2, 4, ..., then
halved back. In the end all samples decide.

What lies outside a range of values is cut off; a narrower range has finer steps. Which is better
shows only in the outputs, so several methods are tried.
"""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph
from braid.core.precision import FP32, INT8
from braid.core.quantisation import Quantisation
from braid.engine.device import Backend
from braid.engine.link.messages import Calibrate
from braid.engine.ops.dtypes import array_of, arrays_of, tensors_of
from braid.engine.passes.body import Weights
from braid.engine.passes.quantised.calibrated import grid_of
from braid.engine.passes.quantised.candidates import Candidates
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.comparison import errors
from braid.engine.worker.checked_inputs import inputs_to_check
from braid.engine.worker.measuring.exact_runs import exact_run
from braid.engine.worker.measuring.sensitivity import Budget, mean_shifts, most_sensitive_first
from braid.engine.worker.models import ModelTable

Range = tuple[float, float]

KEPT = 1 << 15  # elements kept of a value; least and largest are of all elements

PERCENTILE = 99.99

_SHRUNK = [1 - step / 20 for step in range(15)]  # parts of the whole range that are tried


class Observed:
    """Elements of values, seen in the runs of samples."""

    def __init__(self, values: Collection[str], samples: int) -> None:
        self._values = values
        self._share = max(1, KEPT // samples)
        self._ends: dict[str, Range] = {}
        self._kept: dict[str, list[Array]] = {}

    def see(self, value: str, array: Array) -> None:
        if value not in self._values or not array.size:
            return
        least, most = float(array.min()), float(array.max())
        ends = self._ends.get(value, (least, most))
        self._ends[value] = min(ends[0], least), max(ends[1], most)
        step = max(1, array.size // self._share) | 1  # odd: rows are even in length
        self._kept.setdefault(value, []).append(array.reshape(-1)[::step].copy())

    def by(self, method: Callable[[Range, Array], Range]) -> dict[str, Range]:
        """Ranges of the values that are finite, by a method."""
        return {
            value: method(ends, np.concatenate(self._kept[value]))
            for value, ends in self._ends.items()
            if all(abs(end) < float("inf") for end in ends)
        }


def whole(ends: Range, _: Array) -> Range:
    return ends


def percentile(_: Range, elements: Array) -> Range:
    outside = 1 - PERCENTILE / 100
    least, most = np.quantile(elements, [outside, 1 - outside]).tolist()
    return least, most


def least_error(ends: Range, elements: Array) -> Range:
    """The part of the whole range in which rounding and cutting off err least, squared."""

    def error(part: float) -> float:
        scale, zero = grid_of(ends[0] * part, ends[1] * part)
        rounded = (np.clip(np.round(elements / scale) + zero, 0, 255) - zero) * scale
        return float(np.square(rounded - elements).mean())

    best = min(_SHRUNK, key=error)
    return ends[0] * best, ends[1] * best


METHODS: Mapping[str, Callable[[Range, Array], Range]] = {
    "whole range": whole,
    f"percentile {PERCENTILE}": percentile,
    "least error": least_error,
}
"""Ways to take ranges, by their names for people."""


MAX_CALIBRATED = 64  # samples that ranges are taken from ...

MAX_CHECKED = 16  # ... and that errors are measured on while units are chosen

MAX_CORRECTED = 16  # samples that means of rounding errors are taken over

MARGIN = 0.9  # of the tolerance, for errors on held out samples: those on all are larger
HOPELESS = 200.0  # times too large an error is not brought down by units that stay wide
BUDGET_S = 90.0  # CPU seconds a thread, after which no further unit stays wide

Steps = Generator[float | None, None, Quantisation]


def calibrated(
    backend: Backend, models: ModelTable, request: Calibrate, pause: YieldToRequests
) -> Steps:
    """Yields the fraction done; ``InvalidRequest`` if nothing could compute on integers."""
    graph, constants = models.static(replace(request.program, precision=FP32, quantisation=""))
    candidates = Candidates(graph, constants)
    if not candidates.weighted:
        raise InvalidRequest(
            "no convolution or linear layer of the model has FP32 weights that could become "
            "integers; register it in another precision"
        )
    template = models.model(request.program.digest).template.inputs
    inputs = [
        tensors for tensors, _ in inputs_to_check(request.program, graph, template, request.samples)
    ]
    model = _Model(backend, models, request, pause, graph, constants, candidates)
    return (yield from _Calibration(model, inputs).run())


@dataclass(frozen=True, slots=True)
class _Model:
    """What is calibrated, and where it runs."""

    backend: Backend
    models: ModelTable
    request: Calibrate
    pause: YieldToRequests
    graph: OpGraph
    constants: Weights
    candidates: Candidates

    def outputs(
        self, inputs: Arrays, observed: Observed | None = None
    ) -> Generator[None, None, Arrays]:
        """Exact outputs of a run by the names that callers see; values are observed in passing."""

        def visit(op: Operator, values: Weights) -> None:
            if observed is not None:
                for name in filter(values.__contains__, op.outputs):
                    observed.see(name, array_of(values[name]))

        values = {**self.constants, **tensors_of(inputs)}
        for name, array in inputs.items():
            if observed is not None:
                observed.see(name, array)
        yield from exact_run(self.graph, values, visit)
        return arrays_of({name: values[value] for name, value in self.graph.outputs.items()})


class _Calibration:
    """State of one calibration: the samples with their exact outputs, and its budget."""

    def __init__(self, model: _Model, inputs: Sequence[Arrays]) -> None:
        self._model = model
        self._budget = Budget(BUDGET_S)
        is_apart = len(inputs) >= 4
        held_out = [x for i, x in enumerate(inputs) if i % 4 == 3] if is_apart else list(inputs)
        calibrating = [x for i, x in enumerate(inputs) if i % 4 != 3] if is_apart else list(inputs)
        self._held_out, self._rest = held_out[:MAX_CHECKED], calibrating[:MAX_CALIBRATED]
        self._all = [*self._held_out, *self._rest] if is_apart else self._rest
        self._exact: dict[int, Arrays] = {}  # outputs, by identity of the inputs

    def run(self) -> Steps:
        observed = yield from self._observed()
        best: Quantisation | None = None
        for position, (name, method) in enumerate(METHODS.items()):
            how = Quantisation(
                observed.by(method), method=name, candidates=len(self._model.candidates.weighted)
            )
            how = yield from self._measured(how, self._held_out)
            best = how if best is None or _errs_less(how, best) else best
            yield 0.2 + 0.1 * position
        assert best is not None, "there are methods"
        best = yield from self._corrected(best)
        allowed = self._model.request.tolerance
        final = best
        if not _is_right(best, MARGIN * allowed) and _is_right(best, HOPELESS * allowed):
            order = yield from self._order(best)
            final = yield from self._narrowed(best, order, MARGIN * allowed)
            best = yield from self._measured(final, self._all)
            while not _is_right(best, allowed) and self._may_go_on(best):
                more = order[: len(best.wide) + max(1, len(best.wide) // 4)]
                best = yield from self._measured(replace(best, wide=tuple(more)), self._all)
            return best
        return (yield from self._measured(final, self._all))

    def _corrected(self, how: Quantisation) -> Steps:
        model, samples = self._model, self._rest[:MAX_CORRECTED]
        units = model.candidates.weighted
        shifts = yield from mean_shifts(model.graph, model.constants, samples, units, how)
        tried = yield from self._measured(replace(how, shifts=shifts), self._held_out)
        return tried if _errs_less(tried, how) else how

    def _observed(self) -> Generator[float | None, None, Observed]:
        """Run the calibration samples; ranges may be asked of what is returned."""
        observed = Observed(self._model.candidates.values(), len(self._rest))
        for done, inputs in enumerate(self._rest):
            yield 0.2 * done / len(self._rest)
            self._exact[id(inputs)] = yield from self._model.outputs(inputs, observed)
        return observed

    def _measured(
        self, how: Quantisation, samples: Sequence[Arrays], enough: float = math.inf
    ) -> Generator[float | None, None, Quantisation]:
        """``how`` with the largest error over ``samples``; stops at the first above ``enough``."""
        model, key = self._model, self._model.request.program
        program = model.models.bound(replace(key, precision=INT8, quantisation=how.text))
        ready = model.models.ready(program, None)
        worst = 0.0
        try:
            for inputs in samples:
                exact = yield from self._outputs(inputs)
                outputs = ready.run(inputs, model.pause)
                worst = max(worst, errors(outputs, exact)[1])
                yield None
                if not worst <= enough:
                    break
        finally:
            ready.release()
        return replace(how, error=worst, samples=len(samples))

    def _outputs(self, inputs: Arrays) -> Generator[float | None, None, Arrays]:
        if id(inputs) not in self._exact:
            self._exact[id(inputs)] = yield from self._model.outputs(inputs)
        return self._exact[id(inputs)]

    def _may_go_on(self, how: Quantisation) -> bool:
        return len(how.wide) < how.candidates // 2 and self._budget.is_left

    def _narrowed(
        self, how: Quantisation, order: Sequence[str], allowed: float
    ) -> Generator[float | None, None, Quantisation]:
        """Let units stay wide until the error is small enough, at most half of them."""
        wrong, count, most = 0, 1, max(1, how.candidates // 2)
        while True:  # 1, 2, 4, ... until it is right
            best = yield from self._with_wide(how, order[:count], allowed)
            if _is_right(best, allowed) or count >= most or not self._budget.is_left:
                break
            wrong, count = count, min(most, 2 * count)
        right = count
        while _is_right(best, allowed) and right - wrong > 1 and self._budget.is_left:
            half = (right + wrong) // 2
            tried = yield from self._with_wide(how, order[:half], allowed)
            if _is_right(tried, allowed):
                best, right = tried, half
            else:
                wrong = half
        return best

    def _with_wide(
        self, how: Quantisation, wide: Sequence[str], allowed: float
    ) -> Generator[float | None, None, Quantisation]:
        yield 0.5 + 0.5 * self._budget.spent
        how = replace(how, wide=tuple(wide))
        return (yield from self._measured(how, self._held_out, allowed))

    def _order(self, how: Quantisation) -> Generator[None, None, list[str]]:
        model = self._model
        given = {**model.constants, **tensors_of(self._held_out[0])}
        return (yield from most_sensitive_first(model.graph, given, model.candidates.weighted, how))


def _is_right(how: Quantisation, allowed: float) -> bool:
    return how.error is not None and how.error <= allowed


def _errs_less(one: Quantisation, other: Quantisation) -> bool:
    assert one.error is not None
    assert other.error is not None
    return one.error < other.error
