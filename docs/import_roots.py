"""Lets import-linter look into ``braid``: in its process, the package is a namespace.

import-linter takes root packages below namespaces only, and ``braid`` has an ``__init__.py``, which
nothing but users' programs needs. It loads this module as that of a contract type.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

from importlinter import Contract

spec = ModuleSpec("braid", None, is_package=True)
spec.submodule_search_locations = [str(Path(__file__).resolve().parents[1] / ".types/braid")]
sys.modules["braid"] = module_from_spec(spec)


class NoContract(Contract):
    """A contract type that no contract has."""
