"""Fleets of real servers whose devices sleep, to compare the simulation with.

    python -m benchmarks.fleet.sleeping --json FILE

    worker.py     a device worker that sleeps for the latency of a batch, and answers its input
    server.py     ``braid serve`` with that worker in the place of the real one
    nodes.py      servers of one model, each with latencies of its own
    door.py       HAProxy before them, with deploy/haproxy/haproxy.cfg and a log of each request
    cases.py      what is compared: nodes, speeds, loads
    __main__.py   runs cases on both, prints a table, writes JSON

All but the computing is real: transport, checks, batcher, shared memory, the link to the worker.
"""

LATENCIES = "latencies.json"
"""File in the folder of a store: microseconds of a batch on that node's device, by rows."""
