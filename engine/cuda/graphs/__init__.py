"""Stream plans as CUDA graphs: calls, command lists, captures, release of memory."""
