"""Console script ``braid``: one module a subcommand, each with ``add_parser`` and ``run``.

main ──> serve                                       starts the front end (braid.server.app)
     ├─> register models jobs delete infer schedule  talk to a server through the SDK
     ├─> plan                                        schedules an abstract graph, no server
     └─> demo                                        all of it, once, in a temporary store
"""
