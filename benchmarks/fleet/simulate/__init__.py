"""Simulation of a fleet by discrete events, with the server's own batcher on a virtual clock.

    python -m benchmarks.fleet.simulate --json FILE --pictures docs/images

    load.py         clients, at their own pace or each after its answer
      └─> doors.py      which node takes a request
            └─> nodes.py    queues and batches as the server forms them; a device that sleeps
    virtual_time.py an event loop whose time passes only while nothing is left to do
    failures.py     nodes that die and come back
    autoscaling.py  nodes that are added and removed by expected waiting
    scenario.py     all of it for one case, and its report
    studies.py      the cases of docs/fleet-size.md
    pictures.py     their curves

What is not simulated: the front end's own time (``way_s`` is its share of a latency, a constant),
bytes on the network, registrations. ``benchmarks/fleet/sleeping`` compares it with real servers.
"""
