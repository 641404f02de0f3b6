"""Operator kinds, one file a family. Importing the package fills the table of kinds."""

from braid.engine.ops.families import (
    attention,
    elementwise,
    fourier,
    indexing,
    linear,
    normalisation,
    pooling,
    quantised,
    quantised_unit,
    recurrent,
    reduction,
    resize,
    shape,
)

__all__ = [
    "attention",
    "elementwise",
    "fourier",
    "indexing",
    "linear",
    "normalisation",
    "pooling",
    "quantised",
    "quantised_unit",
    "recurrent",
    "reduction",
    "resize",
    "shape",
]
