"""Simulated hosts, and policies that choose among candidates on them."""
