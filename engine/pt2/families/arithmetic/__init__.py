"""Lowering of element-wise operators, matrix products, reductions, symbols."""
