"""How Braid starts a child process in Python: the command line and the environment.

    braid serve ──> device workers, importers, planners    (each: python -P -m MODULE ...)
    braid demo ──> a server, an exporter

A child imports Braid from where its parent did, and nothing from the working folder, which may
hold a ``core/`` or a ``numpy.py`` of the user's own. ``PYTHONPATH`` goes on working.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder that Braid's packages lie in."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs ``python -m module``, the working folder not among its paths."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environment`` for a child, and for the Python processes that its libraries start.

    Empty entries of ``PYTHONPATH`` mean the working folder: they are left out. Relative ones are
    made absolute, as a child may have another working folder.
    """
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    given = [os.path.abspath(entry) for entry in entries if entry]
    ours = [] if _is_installed(ROOT) else [str(ROOT)]
    path = os.pathsep.join(dict.fromkeys([*ours, *given]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _is_installed(folder: Path) -> bool:
    """Whether Python finds packages in ``folder`` by itself, after the standard library."""
    return folder.name in ("site-packages", "dist-packages")
