"""Tests of braid.compiler."""
