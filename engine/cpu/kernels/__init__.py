"""Kernels for CPUs, most of them on oneDNN primitives."""
