"""Servers to load and clients that load them, each in a process of its own.

    serving.py ──> processes ──starts──> echo        a bare grpc.aio server: the floor
                       │                 braid serve
                       └──────starts──> generator    the clients: raw grpc.aio stubs (calls)
    records   what they tell each other (Endpoint, Job, Samples)
    results   from samples to rows, ratios and text
    children  child processes

Everything speaks the Open Inference Protocol v2, so any other server is one more address.
"""
