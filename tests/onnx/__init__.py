"""Tests of the ONNX lowering, against ONNX Runtime."""
