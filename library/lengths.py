"""Calls of other lengths in the plans of compiled ones, where padding is exact.

As in a server (``braid.core.scheduled_lengths``), but by the comparisons of the schedules alone:
what calls take is not observed.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from braid.core.inputs import GivenTensor, ShapeClass
from braid.core.padding import PaddedAxis, length_of, takes
from braid.core.scheduled_lengths import LengthCosts, ScheduledLengths
from braid.core.tensor import TensorType
from braid.engine.runtime.arrays import Arrays
from braid.library.compiled import Compiled
from braid.library.tensors import GivenInputs


class Lengths:
    """Compiled lengths of one network along a padded axis."""

    def __init__(
        self, axis: PaddedAxis, compiled: Mapping[ShapeClass, Compiled], *, has_session: bool
    ) -> None:
        """``has_session``: calls of any shape are answered without preparing anything."""
        self._axis, self._has_session = axis, has_session
        self._main = next(iter(compiled))
        self._scheduled = ScheduledLengths(axis, LengthCosts())
        for shape_class, one in compiled.items():
            self._scheduled.add(shape_class, one.schedules.get(min(one.schedules, default=0)))

    def padded(self, inputs: GivenInputs) -> tuple[GivenInputs, int | None]:
        """Return the inputs of a call as long as a plan that is cheaper, and the call's length.

        As they are, and None, where there is no such plan, or they are none of the model's.
        """
        given = inputs.unchecked()
        own = self._class_of(given)
        longer = None if own is None else self._scheduled.longer(own)
        if own is None or longer is None or not takes(given, self._axis):
            return inputs, None
        if not self._scheduled.pays(own, longer, has_session=self._has_session):
            return inputs, None
        arrays, length = dict(inputs.arrays), length_of(own, self._axis)
        for name, part in self._axis.inputs.items():
            around = [(0, 0)] * arrays[name].ndim
            around[part.dimension] = 0, length_of(longer, self._axis) - length
            arrays[name] = np.pad(arrays[name], around)
        return GivenInputs(arrays, inputs.are_numpy), length

    def cut(self, outputs: Arrays, length: int) -> Arrays:
        places = self._axis.outputs
        return {
            name: x.take(range(length), places[name]) if name in places else x
            for name, x in outputs.items()
        }

    def _class_of(self, given: Sequence[GivenTensor]) -> ShapeClass | None:
        """Return the class of one row; None: the inputs are none of the model's."""
        by_name = {tensor.name: tensor for tensor in given}
        if by_name.keys() != {name for name, _ in self._main.inputs}:
            return None
        lengths = {
            by_name[name].shape[part.dimension : part.dimension + 1]
            for name, part in self._axis.inputs.items()
        }
        if len(lengths) != 1 or () in lengths:
            return None
        inputs = [
            (name, TensorType(by_name[name].dtype, by_name[name].shape).at_rows(1))
            for name, _ in self._main.inputs
        ]
        return ShapeClass(tuple(inputs), self._main.static)
