"""The worker as a process: entry points, limits, the control thread."""
