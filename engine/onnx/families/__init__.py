"""The lowering functions, one file a family. Importing the package fills the table."""

from engine.onnx.families import (
    constants,
    convolution,
    elementwise,
    indexing,
    linear,
    logic,
    normalisation,
    pooling,
    recurrent,
    reduction,
    resize,
    shape,
)
from engine.onnx.registry import TABLE

__all__ = [
    "TABLE",
    "constants",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "logic",
    "normalisation",
    "pooling",
    "recurrent",
    "reduction",
    "resize",
    "shape",
]
