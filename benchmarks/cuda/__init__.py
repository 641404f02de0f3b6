"""The CUDA engine beside every peer: ``python -m benchmarks.engine --device cuda``."""
