"""The CUDA engine: stream plans on several streams, captured into one CUDA graph each."""
