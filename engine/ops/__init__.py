"""Operator kinds over torch, one file a family. Importing the package fills the table of kinds."""

from braid.engine.ops import whole
from braid.engine.ops.arithmetic import (
    elementwise,
    linear,
    logic,
    quantised,
    quantised_unit,
    reduction,
)
from braid.engine.ops.arrays import creation, indexing, shape
from braid.engine.ops.layers import (
    attention,
    convolution,
    normalisation,
    pooling,
    recurrent,
    recurrent_steps,
)
from braid.engine.ops.signals import fourier, resize, sampling

__all__ = [
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "fourier",
    "indexing",
    "linear",
    "logic",
    "normalisation",
    "pooling",
    "quantised",
    "quantised_unit",
    "recurrent",
    "recurrent_steps",
    "reduction",
    "resize",
    "sampling",
    "shape",
    "whole",
]
