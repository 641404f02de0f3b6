"""Uploaded files: formats, bounds, batch axis."""
