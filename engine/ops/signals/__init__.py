"""Resizing, sampling and Fourier transforms."""
