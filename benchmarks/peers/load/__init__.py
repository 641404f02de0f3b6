"""The client program: prebuilt requests over gRPC or HTTP, every answer checked."""
