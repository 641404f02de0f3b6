"""Rewrites of the operator graph at import. After them, each operator is one schedule unit.

Every pass is a pure function ``OpGraph, weights -> OpGraph, weights`` that keeps the numbers (to
rounding) and the names of inputs and outputs. ``run.run_passes`` is the order and the verifier;
most passes are rules (``matching``) that one walk over the operators applies.
"""

from braid.engine.passes.run import run_passes

__all__ = ["run_passes"]
