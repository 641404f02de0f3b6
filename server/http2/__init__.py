"""gRPC over HTTP/2 on the event loop: what ``grpc.aio.server`` offers, without threads of its own.

server       ports, services, interceptors; the surface of ``grpc.aio.Server``
accepting    connections of all ports, how many there may be
calls        one call: metadata, messages, status, deadline, cancellation
messages     messages of one call as they arrive, decompressed when they are asked for
streams      calls of one connection, and how many there may be
connection   one connection: its frames, settings, pings
receiving    bytes of one connection, cut into frames
sending      frames of one connection on their way out, as far as the peer's windows allow
hpack        header compression; ``request_headers`` read blocks, ``answer_headers`` write them
flow_control windows for what the peer sends, and its messages until their handlers have them
arrivals     memory of messages on their way in, of all connections
floods       frames that carry nothing, and how long connections read at a time
keepalive    whether the peer has greeted, and is there still
frames       layout of frames, error codes
"""
