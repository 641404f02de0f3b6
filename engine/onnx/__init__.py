"""ONNX models into template graphs, through a table of small lowering functions."""

from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare

__all__ = ["lower", "prepare"]
