"""Passes that put static graphs on the integers that quantised models bring."""
