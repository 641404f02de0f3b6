"""ONNX models into template graphs, through a table of small lowering functions."""

from engine.onnx.lowering import lower
from engine.onnx.prepare import prepare

__all__ = ["lower", "prepare"]
