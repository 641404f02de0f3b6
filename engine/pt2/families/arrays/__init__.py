"""Lowering of operators that make, move, pick and place elements."""
