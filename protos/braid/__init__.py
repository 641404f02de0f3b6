"""Namespace of the generated code."""
