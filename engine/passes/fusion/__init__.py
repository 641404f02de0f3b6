"""Passes that join operators into one schedule unit."""
