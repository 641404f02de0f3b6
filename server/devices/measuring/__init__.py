"""Measurements for registrations, in a process that gives way to requests."""
