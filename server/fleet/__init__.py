"""Servers that share one database: what one of them changes, the others follow."""
