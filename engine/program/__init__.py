"""Static graphs bound to kernels, which every device runs."""
