"""The worker as a process: entry point, assembly, what it does now."""
