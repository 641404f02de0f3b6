"""Kernels of units on 8-bit integers, of oneDNN's primitives."""
