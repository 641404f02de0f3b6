"""Versions of Braid and its dependencies, for ``braid_build_info``; none of them is imported."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from braid_client.version import __version__

CHECKOUT = Path(__file__).resolve().parents[2]
GIT_SECONDS = 5.0


def tell_build(registry: CollectorRegistry, commit: str = "") -> None:
    """Export ``braid_build_info``, with "" where a package is absent or the commit unknown.

    ``commit`` is what the operator or the image says; else the checkout's, if this is one.
    """
    facts = {
        "version": __version__,
        "commit": commit or checkout_commit(CHECKOUT),
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "onnxruntime": _installed("onnxruntime") or _installed("onnxruntime-gpu"),
    }
    info = Gauge("braid_build_info", "What runs; always 1", facts.keys(), registry=registry)
    info.labels(**facts).set(1)


def checkout_commit(folder: Path) -> str:
    """Return the commit of a git checkout; "" if the folder is none or git cannot tell."""
    if not (folder / ".git").exists():
        return ""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
