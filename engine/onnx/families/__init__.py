"""The lowering functions, one file a family. Importing the package fills the table."""

from braid.engine.onnx.families import (
    arrays,
    elementwise,
    linear,
    normalisation,
    quantised,
    reduction,
    sequences,
    signals,
)
from braid.engine.onnx.lowering_table import TABLE

__all__ = [
    "TABLE",
    "arrays",
    "elementwise",
    "linear",
    "normalisation",
    "quantised",
    "reduction",
    "sequences",
    "signals",
]
