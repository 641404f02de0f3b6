"""Metrics, statistics, traces, logs, drift of schedules."""
