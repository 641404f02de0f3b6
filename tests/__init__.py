"""Tests of Braid, one folder a part."""
