"""Planners: which units run side by side. Knows no device, no torch and no transport."""
