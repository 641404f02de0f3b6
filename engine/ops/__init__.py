"""Operator kinds over torch, one file a family. Importing the package fills the registry."""

from engine.ops import (
    attention,
    convolution,
    indexing,
    linear,
    logic,
    normalisation,
    pointwise,
    pooling,
    quantised,
    recurrent,
    recurrent_steps,
    reduce,
    resize,
    sampling,
    shape,
    signal,
)

__all__ = [
    "attention",
    "convolution",
    "indexing",
    "linear",
    "logic",
    "normalisation",
    "pointwise",
    "pooling",
    "quantised",
    "recurrent",
    "recurrent_steps",
    "reduce",
    "resize",
    "sampling",
    "shape",
    "signal",
]
