"""Loads Ray where it is installed, past the warnings of its own code."""

import warnings
from contextlib import suppress

with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")
    import ray.serve.schema  # noqa: F401
