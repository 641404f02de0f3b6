"""gRPC over HTTP/2 on the event loop: what ``grpc.aio.server`` offers, without threads of its own.

server       ports, services, interceptors; the surface of ``grpc.aio.Server``
calls        one call: metadata, messages, status, deadline, cancellation
messages     messages of one call as they arrive, decompressed when they are asked for
streams      calls of one connection, and how many there may be
connection   one connection: its frames, settings, pings
receiving    bytes of one connection, cut into frames
sending      frames of one connection on their way out, as far as the peer's windows allow
headers      header blocks to metadata and back
bounds       windows, memory of messages, keepalive, floods of useless frames
frames       layout of frames, error codes
"""
