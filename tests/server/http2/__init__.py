"""Tests of gRPC over our own HTTP/2."""
