"""The refusal of one use of an operator, which both formats collect over a whole model."""

from __future__ import annotations


class UnsupportedUse(Exception):
    """A use of an operator that the lowering tables do not cover; the message is the reason."""
