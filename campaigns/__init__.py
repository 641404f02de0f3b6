"""Programs that look for faults by minutes and seeds: ``python -m campaigns NAME --help``.

attack         the tables of tests/attack, then random messages to every method (noise)
chaos          random blows to a server under load
exact          random requests to random networks, compared with plain arithmetic
fuzz           random graphs, damaged model files, damaged bytes of HTTP/2
mixed          plans that mix engines, with calls that are cancelled: nothing hangs
paused         the fast suite while its processes are stopped at random
soak           mixed load for long: memory stays flat, latencies steady
tenants        random graphs for many callers at once: each is answered with its own numbers

traffic and registrations are clients that chaos, soak and benchmarks of fleets share. Tests of the
campaigns' parts are in tests/campaigns.
"""
