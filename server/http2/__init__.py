"""gRPC over HTTP/2 on the event loop: what ``grpc.aio.server`` offers, without threads of its own.

server       ports, services, interceptors; the surface of ``grpc.aio.Server``
calls        one call: metadata, messages, status, deadline, cancellation
streams      one HTTP/2 stream: messages in, messages out, flow control
connection   one connection: frames read and written, settings, pings, limits
frames       layout of frames, error codes
headers      header blocks to metadata and back
"""
