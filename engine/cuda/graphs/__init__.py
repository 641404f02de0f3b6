"""Stream plans as CUDA graphs: calls, tapes, captures, release of memory."""
