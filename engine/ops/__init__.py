"""Operator kinds over torch. Importing the package fills the table of kinds."""

from braid.engine.ops import families, whole

__all__ = ["families", "whole"]
