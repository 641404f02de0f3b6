"""Servers that benchmarks load, and other child processes of theirs."""
