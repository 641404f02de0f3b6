"""Proof by numbers that a lowered model computes what the uploaded one does."""
