"""Priority, memory, threads and stops of the engine's processes."""
