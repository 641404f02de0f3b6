"""Tenants with numbers of their own ask random graphs, many of which mix the rows of a batch."""
