"""Campaigns against a fleet: n servers on one PostgreSQL and one S3, killed, paused and cut off.

    python -m benchmarks.fleet CAMPAIGN... --times 20 --json FILE

    stand.py         PostgreSQL, S3, fleets, model files; what a run has seen
    audit.py         each write of the servers, recorded by triggers in the database
    registering.py   many registrations at once through several nodes
    owners.py        a job's owner is killed, paused, cut off; clocks are wrong
    uploads.py       a node is killed between an upload and its answer
    outages.py       PostgreSQL away, S3 away, S3 full
    following.py     schedules, new nodes, restarts and outputs on all nodes
    __main__.py      runs campaigns, prints a table, writes JSON

Servers are asked through their clients; what they did is read from the database and the bucket,
past them. ``tests/fleet`` runs each campaign once or a shortened one.
"""
