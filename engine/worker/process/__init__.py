"""The worker as a process: entry points, limits, the status thread."""
