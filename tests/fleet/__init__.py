"""A fleet on one machine: servers in namespaces of their own, a real PostgreSQL, a real S3.

    alone.py      runs a command in namespaces of its own: whatever it starts ends with it
    postgres.py   PostgreSQL in a folder: started, stopped, killed, looked into
    s3.py         SeaweedFS in a folder, on a disk of a given size if wanted
    machine.py    network, process and mount namespaces with one server: killed, cut off, paused
    skew.c        another wall clock for one server
    fleet.py      all of it together
    conftest.py   the fixtures

    machines 10.77.0.1, .2, ...: eth0 ──┐
    tests, PostgreSQL, S3: 10.77.0.254 ─┴─ bridge

``make test-fleet`` runs them. What cannot be had here is named in one line, and its tests skip.
"""
