"""Device-specific kernels for schedule units, tried before the plain registry kernel."""
