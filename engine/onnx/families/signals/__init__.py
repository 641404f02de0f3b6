"""Lowering of resizing, sampling and Fourier transforms."""
