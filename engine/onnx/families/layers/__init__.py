"""Lowering of the layers of networks."""
