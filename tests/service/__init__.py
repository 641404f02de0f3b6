"""Servers as processes of their own, for tests."""
