"""The lowering functions, one file a family. Importing the package fills the table."""

from engine.onnx.families import (
    attention,
    constants,
    convolution,
    elementwise,
    indexing,
    linear,
    logic,
    normalisation,
    pooling,
    quantised,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
)
from engine.onnx.registry import TABLE

__all__ = [
    "TABLE",
    "attention",
    "constants",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "logic",
    "normalisation",
    "pooling",
    "quantised",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "shape",
]
