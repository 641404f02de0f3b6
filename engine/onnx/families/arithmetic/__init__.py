"""Lowering of element-wise operators, matrix products, logic, reductions, quantisation."""
