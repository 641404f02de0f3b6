"""Measurements for registrations, which give way to requests."""
