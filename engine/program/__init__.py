"""A static graph bound to kernels: what every device runs."""
