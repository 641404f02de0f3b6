"""Precisions that a model may compute in, and the error of outputs that each allows.

    fp32   FP32 throughout; TF32 off
    tf32   FP32 data; matrix products and convolutions round their operands to 10 bits
    fp16   the wide operators on FP16 data; sums and what overflows easily in FP32
    bf16   as fp16, with FP32's range and 7 bits
    int8   convolutions, linear layers and what lies between them on 8-bit integers, whose ranges
           are taken from samples; units that this costs too much stay in FP32
    auto   whichever of those is fastest within the accepted error; chosen by measurement

The model's own inputs, outputs and stored weights keep their types: a precision says how it is run.
"""

from collections.abc import Mapping

from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph

FP32 = "fp32"
TF32 = "tf32"
BF16 = "bf16"
HALF: Mapping[str, str] = {"fp16": "FP16", BF16: "BF16"}
"""Precisions that compute on narrower data, and its dtype."""

INT8 = "int8"

PRECISIONS = (FP32, TF32, *HALF, INT8)

AUTO = "auto"
"""What a registration asks for instead of a precision, to have the fastest one chosen."""

ASKED = (*PRECISIONS, AUTO)

TOLERANCES: Mapping[str, float] = {TF32: 5e-3, "fp16": 1e-2, "bf16": 5e-2, INT8: 5e-2}
"""Allowed difference of outputs from FP32, relative to the largest element of each.

Ten times what rounding each operand once costs (2^-11 for 10 bits, 2^-8 for 7) and a bit: what
dozens of layers add up to stays below, a model that loses its numbers does not. FP32's own
tolerance is a setting of the server.
"""

AUTO_TOLERANCE = 1e-2
"""Error that ``auto`` allows to precisions other than FP32, unless a registration says another."""


QUANTISING = frozenset({"braid.quantise", "braid.quantised_unit", "braid.quantised_matmul"})
"""Kinds of operators that round to integers, whatever the precision of everything else."""

QUANTISED_TOLERANCE = 5e-2
"""Allowed difference of outputs of models with such operators.

Where two ways of computing lie on both sides of a tie, a value differs by one of 255 steps, and the
layers behind it, too; what was seen of networks is 0.004 to 0.008, one step of the outputs.
"""


PRECISION_OF: Mapping[str, str] = {dtype: precision for precision, dtype in HALF.items()}
"""Precision that computes in a dtype narrower than FP32."""


def allowed_in(allowed: float, graph: OpGraph, narrow_type: str = "") -> float:
    """Allowed difference of outputs of a graph: more than ``allowed`` if it rounds to integers.

    And if its file is of FP16 or BF16, ``narrow_type``: other runtimes round to it everywhere.
    """
    rounds = any(operator.kind in QUANTISING for operator in graph.operators)
    allowed = max(allowed, TOLERANCES[PRECISION_OF[narrow_type]]) if narrow_type else allowed
    return max(allowed, QUANTISED_TOLERANCE) if rounds else allowed


def check_precision(name: str) -> None:
    if name not in ASKED:
        raise InvalidRequest(f"no precision {name!r}; there are {', '.join(ASKED)}")
