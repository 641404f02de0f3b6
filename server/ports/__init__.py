"""The gRPC and HTTP ports."""
