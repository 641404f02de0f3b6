"""Faults that were found in a running server, each as a script that shows it from outside.

    python -m campaigns regressions                            every fault, once, on this tree
    python -m campaigns regressions endless_run --times 20     one of them, twenty times in a row
    python -m campaigns regressions --tree PATH                the server of another checkout

A module here has ``check(server: FaultyServer) -> None``, which raises AssertionError while the
fault is there. It uses public surfaces only (command line, RPCs, HTTP, signals to processes), so
that it shows the fault in an older checkout, too.
"""
