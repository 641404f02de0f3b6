"""Devices as the server sees them: workers, what is loaded there, cores, limits of runs."""
