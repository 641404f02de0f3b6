"""The front end: what a server is made of, and the order in which its parts start and stop.

process ──makes──> FrontEnd (front_end.py)
                     ├── model_parts.py   parts that know models by name, put together
                     ├── interfaces.py    gRPC and HTTP: every method that callers reach
                     └── readiness.py     whether the server is ready, and why not

This is the composition root: the only place that knows which class stands behind which Protocol.
"""
