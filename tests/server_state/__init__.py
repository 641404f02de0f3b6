"""Tests of settings, store, jobs, metrics, status and logs."""
