"""Ports of gRPC and HTTP."""
