"""ONNX models into template graphs, through a table of small lowering functions."""
