"""Measurements on a CPU: stages, and what stages and groups cost beside their units."""
