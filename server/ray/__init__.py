"""Nodes of Braid on a Ray cluster: Ray Serve places, restarts, rolls and scales them.

    client ──gRPC──> HAProxy of any node ──fewest calls──> replica of Ray Serve, one a machine
                                                             └── is a front end of Braid

    environment.py   variables of Ray's processes, checked on every node
    haproxy.py       console script that starts HAProxy for Ray Serve
    handlers.py      Braid's services on the replica's own server of gRPC
    node.py          the replica: a front end, its health, its end
    scaling.py       how many nodes, by what waits and by how busy devices are
    application.py   the application and its configuration
    deploying.py     ``braid ray``: checks, deploys, waits

Nothing outside this room imports ray. Needs ``pip install 'braid-serve[ray]'``.
"""
