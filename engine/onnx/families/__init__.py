"""The lowering functions, one file a family. Importing the package fills the table."""

from importlib import import_module

from braid.engine.onnx.lowering_table import TABLE

__all__ = ["TABLE"]

_FAMILIES = "arrays elementwise linear normalisation quantised reduction sequences signals"
for _family in _FAMILIES.split():
    import_module(f"{__name__}.{_family}")
