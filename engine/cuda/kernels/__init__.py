"""Kernels for CUDA: the ways of cuDNN, cuBLASLt and TorchInductor to run each unit."""
