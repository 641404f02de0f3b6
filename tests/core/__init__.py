"""Tests of what every part shares."""
