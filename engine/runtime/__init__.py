"""What a process of the engine needs of its machine: priority, memory, threads, stops."""
