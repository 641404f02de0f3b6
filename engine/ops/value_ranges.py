"""Values that an operator can use of what a request or a model gives it, and the refusal of others.

    indices, lengths, positions, divisors ──Values of the kind──> ValueRange ──> InvalidRequest

Torch's kernels refuse some values, in words of their own, and compute with others: a length beyond
the sequence, an index that would wrap twice. ONNX Runtime refuses both, and so does every kind that
says which values it takes (``OpDef.values``).

In a model served whole, ONNX Runtime refuses values (a NaN region, an index out of range) when it
meets them. At the same shapes the model ran when it was imported, so it is the content of the
request that is wrong (``refused_values``).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator
from braid.engine.ops.dtypes import array_of
from braid.engine.runtime.arrays import Array
from braid.engine.runtime.memory import is_out_of_memory

MOST = (1 << 63) - 1

Shape = Sequence[int]


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Integers that the elements of one operand may be."""

    operand: int  # its position
    what: str  # an element is: index, length, position, divisor
    lowest: int
    highest: int
    zero: bool = True  # whether 0 is among them
    column: int | None = None  # of the operand's last axis; None: all elements

    def wrong_value(self, array: Array) -> int | None:
        """Return an element of an array that is not in the range; None if all are."""
        if array.dtype.kind not in "iub" or not array.size:
            return None
        if self.column is not None:
            array = array[..., self.column]
        for value in (int(array.min()), int(array.max())):
            if not self.lowest <= value <= self.highest:
                return value
        return 0 if not self.zero and not array.all() else None

    def refusal(self, operator: Operator, wrong: int) -> InvalidRequest:
        return InvalidRequest(
            f"operator {operator.name!r} ({operator.kind}) cannot use the {self.what} {wrong}; "
            f"it takes {self}"
        )

    def __str__(self) -> str:
        if not self.zero:
            return "any other than 0"
        return f"{self.lowest} to {self.highest}" if self.highest < MOST else f"{self.lowest} on"


Values = Callable[[Sequence[Shape | None], Mapping[str, Any]], Iterable[ValueRange]]
"""Function from the shapes of the operands (None where absent) and the attributes."""


def refuse_values(operator: Operator, values: Values, operands: Sequence[Tensor | None]) -> None:
    """Raise ``InvalidRequest`` for the first such value; tensors on a GPU are not looked at."""
    shapes = [None if tensor is None else tensor.shape for tensor in operands]
    for wanted in values(shapes, operator.attributes):
        tensor = operands[wanted.operand]
        if tensor is None or not is_readable(tensor):
            continue
        wrong = wanted.wrong_value(array_of(tensor))
        if wrong is not None:
            raise wanted.refusal(operator, wrong)


def is_readable(tensor: Tensor) -> bool:
    """Whether a tensor has values that can be read without waiting: no meta or fake one."""
    return type(tensor) is Tensor and tensor.device.type == "cpu"


def along_axis(
    shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> Iterable[ValueRange]:
    """Operand 1 holds indices along ``axis`` of operand 0; with ``wrap``, also from its end."""
    assert shapes[0] is not None
    extent = shapes[0][attributes.get("axis", 0)]
    yield ValueRange(1, "index", -extent if attributes.get("wrap", True) else 0, extent - 1)


def index_tuples(
    shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> Iterable[ValueRange]:
    """The last axis of operand 1 holds one index for each axis of operand 0, behind the batch."""
    data, indices = shapes[:2]
    assert data is not None
    assert indices is not None
    first = attributes.get("batch_dims", 0)
    for column in range(indices[-1]):
        extent = data[first + column]
        yield ValueRange(1, "index", -extent, extent - 1, column=column)


def divisors(_: Sequence[Shape | None], __: Mapping[str, Any]) -> Iterable[ValueRange]:
    lowest = torch.iinfo(torch.int64).min
    yield ValueRange(1, "divisor", lowest, 2 * MOST + 1, zero=False)


_REFUSAL = re.compile(r"while running (\w+) node\. Name:'[^']*' Status Message: ")
_SOURCE = re.compile(r"^\S+\.(?:cc|h):\d+ .* was false\. ")  # of ONNX Runtime, and its condition


def refused_values(error: Exception, origins: Sequence[Sequence[str]]) -> InvalidRequest | None:
    """Error of a run for its caller if ONNX Runtime refused values, else None.

    ``origins``: for kinds of operators, the inputs of the model that decide their addresses:
    ``[["RoiAlign", "rois", "batch"], ...]``.
    """
    refusals = list(_REFUSAL.finditer(str(error)))  # that of a loop before one inside of it
    if not refusals or is_out_of_memory(error):
        return None
    kinds = [match[1] for match in refusals]
    reason = str(error)[refusals[-1].end() :].strip().partition("\n")[0]
    reason = _SOURCE.sub("", reason)[-300:]
    names = [repr(name) for kind, *inputs in origins if kind in kinds for name in inputs]
    where = f"; they come from input {' or '.join(names)}" if names else ""
    return InvalidRequest(f"the model cannot run on these values: {kinds[-1]}: {reason}{where}")
