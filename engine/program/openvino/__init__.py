"""Whole models in OpenVINO, in FP32 on a CPU."""
