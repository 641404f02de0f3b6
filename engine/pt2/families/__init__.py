"""The lowering functions of aten operators, one file a family. Importing the package fills the
allow-list.
"""

from braid.engine.pt2.families.arithmetic import elementwise, linear, reduction, symbols
from braid.engine.pt2.families.arrays import creation, indexing, shape
from braid.engine.pt2.families.layers import (
    attention,
    convolution,
    normalisation,
    pooling,
    recurrent,
)
from braid.engine.pt2.families.signals import resize
from braid.engine.pt2.lowering_table import TABLE

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
