"""Servers to load and clients that load them, each in a process of its own.

    serving.py ──> processes ──starts──> echo        a bare grpc.aio server: the floor
                       │                 braid serve
                       └──────starts──> generator    the clients: raw grpc.aio stubs
    records   what they tell each other (Endpoint, Job, Samples)
    results   from samples to rows, ratios and text

Another endpoint is one more context manager in ``processes``; another pattern of load (open loop)
one more function beside ``generator.closed_loop``, chosen by a field of ``Job``.
"""
