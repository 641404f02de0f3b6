"""Kinds that make, move, pick and place elements."""
