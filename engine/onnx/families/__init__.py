"""The lowering functions, one file a family. Importing the package fills the table."""

from braid.engine.onnx.families.arithmetic import (
    elementwise,
    linear,
    quantised,
    quantised_operators,
    reduction,
)
from braid.engine.onnx.families.arrays import constants, indexing, shape
from braid.engine.onnx.families.layers import (
    attention,
    convolution,
    normalisation,
    pooling,
    recurrent,
)
from braid.engine.onnx.families.signals import resize, sampling
from braid.engine.onnx.lowering_table import TABLE

__all__ = [
    "TABLE",
    "attention",
    "constants",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "normalisation",
    "pooling",
    "quantised",
    "quantised_operators",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "shape",
]
