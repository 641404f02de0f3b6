"""Measurements that a worker takes between inferences."""
