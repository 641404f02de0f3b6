"""Parts that all gRPC services share: status codes, handlers, guards."""
