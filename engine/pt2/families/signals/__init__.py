"""Lowering of resizing and sampling."""
