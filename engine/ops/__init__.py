"""Operator kinds over torch, one file a family. Importing the package fills the registry."""

from engine.ops import (
    convolution,
    indexing,
    linear,
    logic,
    normalisation,
    pointwise,
    pooling,
    recurrent,
    recurrent_steps,
    reduce,
    resize,
    shape,
)

__all__ = [
    "convolution",
    "indexing",
    "linear",
    "logic",
    "normalisation",
    "pointwise",
    "pooling",
    "recurrent",
    "recurrent_steps",
    "reduce",
    "resize",
    "shape",
]
