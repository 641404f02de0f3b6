"""Families of unit kinds, and how each looks: a colour and a hatching, legible without colour.

The fills differ in lightness and the hatchings in direction, so that a chart printed in black and
white, or seen by someone who cannot tell the hues apart, says the same.
"""

from dataclasses import dataclass

from braid.core.graph import Operator
from braid.core.runtimes import ONNXRUNTIME, OPENVINO


@dataclass(frozen=True, slots=True)
class Family:
    """Units that do the same sort of work."""

    name: str
    fill: str  # light enough for black text
    hatching: str  # an SVG path in an 8x8 tile; "" for none
    kinds: tuple[str, ...]  # parts of kind names that belong here


OTHER = Family("other", "#d9d9d9", "M4 3.4v1.2M3.4 4h1.2", ())

FAMILIES = (
    Family("convolution", "#9ecae8", "", ("conv",)),
    Family("matrix product", "#f5c98b", "M0 8L8 0", ("linear", "mm", "matmul", "einsum", "gemm")),
    Family("attention", "#d3b3e0", "M0 0L8 8M0 8L8 0", ("attention",)),
    Family("recurrent", "#e8b4b4", "M0 4H8M4 0V8", ("lstm", "gru", "rnn")),
    Family("pooling", "#b9e0a5", "M0 0L8 8", ("pool",)),
    Family("joining, moving", "#f7f3b5", "M4 0V8", (
        "cat", "concat", "stack", "split", "slice", "reshape", "view", "permute", "transpose",
        "expand", "pad", "gather", "index", "squeeze", "flatten", "embedding",
    )),
    Family("normalisation", "#f0c4da", "M0 2H8M0 6H8", ("norm", "softmax")),
    Family("elementwise", "#ffffff", "M0 4H8", (
        "add", "mul", "sub", "div", "relu", "sigmoid", "tanh", "gelu", "silu", "exp", "sqrt",
        "pow", "clamp", "where", "hardswish", "erf", "neg",
    )),
)  # fmt: skip


ENGINES = {ONNXRUNTIME: "#0b7a75", OPENVINO: "#6b3fa0"}
"""Colour of the band under units that an engine runs; another one is grey."""

OTHER_ENGINE = "#555"


def family_of(op: Operator) -> Family:
    kind = op.kind.rpartition(".")[2].lower()
    for family in FAMILIES:
        if any(part in kind for part in family.kinds):
            return family
    return OTHER


def kind_text(op: Operator) -> str:
    """The kind with what is fused into it: ``convolution+relu``."""
    fused = op.attributes.get("epilogue")
    steps = [step[0] for step in fused if isinstance(step, list)] if isinstance(fused, list) else []
    return "+".join(str(kind).rpartition(".")[2] for kind in (op.kind, *steps))
