"""Element-wise kinds, matrix products, logic, reductions, integer arithmetic."""
