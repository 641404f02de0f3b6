"""The backend tests of the onnx package against Braid: ``make onnx-backend``."""
