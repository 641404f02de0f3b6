"""The lowering functions of aten operators, one file a family. Importing the package fills the
allow-list.
"""

from engine.pt2.families import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    linear,
    normalisation,
    pooling,
    recurrent,
    reduction,
    resize,
    shape,
    symbols,
)
from engine.pt2.registry import TABLE

__all__ = [
    "TABLE",
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "linear",
    "normalisation",
    "pooling",
    "recurrent",
    "reduction",
    "resize",
    "shape",
    "symbols",
]
