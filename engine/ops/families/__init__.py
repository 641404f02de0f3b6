"""Operator kinds, one file a family. Importing the package fills the table of kinds."""

from importlib import import_module

_FAMILIES = (
    "attention elementwise fourier indexing linear normalisation pooling quantised quantised_unit "
    "recurrent reduction resize shape"
)
for _family in _FAMILIES.split():
    import_module(f"{__name__}.{_family}")
