"""The lowering functions of aten operators, one file a family. Importing the package fills the
allow-list.
"""

from braid.engine.pt2.families import (
    elementwise,
    indexing,
    linear,
    normalisation,
    reduction,
    sequences,
    shape,
    signals,
    symbols,
)
from braid.engine.pt2.lowering_table import TABLE

__all__ = [
    "TABLE",
    "elementwise",
    "indexing",
    "linear",
    "normalisation",
    "reduction",
    "sequences",
    "shape",
    "signals",
    "symbols",
]
