"""ONNX models into template graphs, through a table of small lowering functions."""

from engine.onnx.lowering import lower

__all__ = ["lower"]
