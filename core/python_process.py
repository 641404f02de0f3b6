"""Command line and environment of a child process that runs Python.

    braid serve ──> device workers, importers, planners    (each: python -P -m MODULE ...)
    braid demo ──> a server, an exporter

A child finds Braid among the installed packages, as its parent did, and imports nothing from the
working folder, which may hold a ``core/`` or a ``numpy.py`` of the user's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def python_program() -> Path:
    """Path of the Python that this process runs; scripts of its packages lie beside it."""
    return Path(sys.executable)


def python_command(module: str, *arguments: str) -> list[str]:
    """Command that runs ``python -m module`` without the working folder among its paths."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environment`` for a child, and for the Python processes that its libraries start.

    ``PYTHONPATH`` is kept, without its empty entries, which mean the working folder; its relative
    entries are made absolute, as a child may have another working folder.
    """
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
