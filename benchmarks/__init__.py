"""Benchmarks: networks to schedule and programs that measure Braid against its peers."""
