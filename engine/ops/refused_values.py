"""Errors for values of a request that an operator of a model served whole cannot use.

Some operators turn values into addresses or sizes: regions, indices, counts. ONNX Runtime refuses
values that are none (a NaN region, an index out of range) when it meets them. At the same shapes
the model ran when it was imported, so it is the content of the request that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from braid.core.errors import InvalidRequest
from braid.engine.runtime.memory import is_out_of_memory

ADDRESSES = {
    "ConstantOfShape": (0,),
    "CropAndResize": (1, 2, 3),
    "EmbedLayerNormalization": (0, 1),
    "Expand": (1,),
    "GRU": (4,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "LSTM": (4,),
    "MaxRoiPool": (1,),
    "MaxUnpool": (1,),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "OneHot": (0, 1),
    "Pad": (1,),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "ReverseSequence": (1,),
    "RoiAlign": (1, 2),
    "ScatterElements": (1,),
    "ScatterND": (1,),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
    "TopK": (1,),
}
"""Operands that an operator takes for addresses or sizes."""

_REFUSAL = re.compile(r"while running (\w+) node\. Name:'[^']*' Status Message: ")
_SOURCE = re.compile(r"^\S+\.(?:cc|h):\d+ .* was false\. ")  # of ONNX Runtime, and its condition


def refused_values(error: Exception, origins: Sequence[Sequence[str]]) -> InvalidRequest | None:
    """Return the error for the caller of a run that ended with ``error``; None if not for values.

    Args:
        error: from ONNX Runtime.
        origins: for kinds of operators, the inputs of the model that decide their addresses:
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
