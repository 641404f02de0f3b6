"""Operator kinds over torch, one file a family. Importing the package fills the registry."""

from braid.engine.ops import whole
from braid.engine.ops.arithmetic import elementwise as pointwise
from braid.engine.ops.arithmetic import linear, logic, quantised, unsigned
from braid.engine.ops.arithmetic import reduction as reduce
from braid.engine.ops.arrays import creation, indexing, shape
from braid.engine.ops.layers import (
    attention,
    convolution,
    normalisation,
    pooling,
    recurrent,
    recurrent_steps,
)
from braid.engine.ops.signals import fourier as signal
from braid.engine.ops.signals import resize, sampling

__all__ = [
    "attention",
    "convolution",
    "creation",
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
    "unsigned",
    "whole",
]
