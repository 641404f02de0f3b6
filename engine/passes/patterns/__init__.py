"""Passes that recognise what exporters write as several operators."""
