"""Calls of other lengths in the plans of compiled ones, where padding is exact.

    call of length 53 ──pad──> 64, which was compiled ──plan──> outputs ──cut──> 53

As in a server (``braid.server.inference.buckets``), but by the comparisons of the schedules alone:
what calls take is not observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.compiler.imported_model import ImportedModel
from braid.core.curve import Curve
from braid.core.padding import LEAST_SAVED, MASK, MOST_PADDING, PaddedAxis
from braid.core.runtimes import ONNXRUNTIME
from braid.core.tensor import outputs_at
from braid.library.compiled import Compiled


def padded_axis(imported: ImportedModel) -> PaddedAxis | None:
    """Return the axis along which calls are padded to compiled lengths; None: there is none."""
    exact = [axis for axis in imported.padding if axis.exact]
    batch, graph = imported.report.batch, imported.graph
    specs = {name: graph.spec(value) for name, value in graph.outputs.items()}
    outputs = outputs_at(graph.inputs, specs, imported.inputs(1)).values()
    is_open = any(not spec.is_static for spec in outputs)
    if len(exact) != 1 or batch is None or batch.alone or is_open or imported.has_strings:
        return None
    return exact[0]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A compiled length, and the shapes of one row there."""

    length: int
    shapes: Mapping[str, tuple[int, ...]]
    plan_us: float | None  # None: it was not measured
    session_us: float | None  # the same, of ONNX Runtime in one comparison


class Lengths:
    """Compiled lengths of one network along a padded axis."""

    def __init__(
        self, axis: PaddedAxis, compiled: Sequence[Compiled], *, has_session: bool
    ) -> None:
        """``has_session``: calls of any shape are answered without preparing anything."""
        self._axis, self._has_session = axis, has_session
        planned = [_planned(one, axis) for one in compiled]
        self._planned = sorted(planned, key=lambda one: one.length)
        compared = {float(one.length): one.session_us for one in planned if one.session_us}
        self._session_us = Curve(compared, rises=True)

    def padded(self, inputs: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], int | None]:
        """Return the inputs of a call as long as a plan that is cheaper, and the call's length.

        As they are, and None, where there is no such plan, or they are none of the model's.
        """
        planned, length = self._longer(inputs)
        if planned is None or not self._pays(length, planned) or not self._takes(inputs):
            return inputs, None
        longer = dict(inputs)
        for name, part in self._axis.inputs.items():
            given = inputs[name]
            shape = list(given.shape)
            shape[part.dimension] = planned.length
            longer[name] = torch.zeros(shape, dtype=given.dtype)
            longer[name].narrow(part.dimension, 0, length).copy_(given)
        return longer, length

    def cut(self, outputs: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        places = self._axis.outputs
        return {
            name: x.narrow(places[name], 0, length).contiguous() if name in places else x
            for name, x in outputs.items()
        }

    def _longer(self, inputs: Mapping[str, Tensor]) -> tuple[_Planned | None, int]:
        """Return the next compiled length of these shapes, and their own length."""
        axis, lengths = self._axis, set[int]()
        if not all(isinstance(given, Tensor) for given in inputs.values()):
            return None, 0
        for name, part in axis.inputs.items():
            if name not in inputs or inputs[name].dim() <= part.dimension:
                return None, 0
            lengths.add(inputs[name].shape[part.dimension])
        if len(lengths) != 1:
            return None, 0
        (length,) = lengths
        for planned in self._planned:
            if 0 < length < planned.length <= axis.up_to and _is_alike(inputs, planned, axis):
                return planned, length
        return None, length

    def _pays(self, length: int, planned: _Planned) -> bool:
        if any(one.length == length for one in self._planned):
            return False
        if not self._has_session:
            return length >= planned.length * (1 - MOST_PADDING)
        session_us = self._session_us.at(length)
        if session_us is None or planned.plan_us is None:
            return False
        return planned.plan_us < (1 - LEAST_SAVED) * session_us

    def _takes(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether every row of a mask begins with a one."""
        masks = {name: part for name, part in self._axis.inputs.items() if part.way == MASK}
        return all(
            bool((inputs[name].narrow(part.dimension, 0, 1) == 1).all())
            for name, part in masks.items()
        )


def _planned(compiled: Compiled, axis: PaddedAxis) -> _Planned:
    imported = compiled.imported
    shapes = {
        name: tuple(int(extent) for extent in spec.shape)
        for name, spec in imported.inputs(1).items()
    }
    length = next(shapes[name][part.dimension] for name, part in axis.inputs.items())
    schedule = compiled.schedules.get(min(compiled.schedules, default=0))
    if schedule is None:
        return _Planned(length, shapes, None, None)
    return _Planned(length, shapes, schedule.serving_us, schedule.latency_in(ONNXRUNTIME))


def _is_alike(inputs: Mapping[str, Tensor], planned: _Planned, axis: PaddedAxis) -> bool:
    """Whether inputs differ from a compiled shape in their rows and along the axis only."""

    def others(name: str, shape: Sequence[int]) -> list[int]:
        part = axis.inputs.get(name)
        return [
            extent
            for dimension, extent in enumerate(shape)
            if dimension and (part is None or dimension != part.dimension)
        ]

    return inputs.keys() == planned.shapes.keys() and all(
        inputs[name].dim() == len(shape) and others(name, inputs[name].shape) == others(name, shape)
        for name, shape in planned.shapes.items()
    )
