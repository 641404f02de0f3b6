"""Kernels for CPU: the ways to run each unit, most of them on oneDNN primitives."""
