"""Metrics, statistics, traces, logs."""
