"""The CPU engine: stream plans on lanes of pinned threads, kernels on oneDNN."""
