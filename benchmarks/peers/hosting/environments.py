"""One virtual environment a peer, made with pip from its ``requirements.txt``, kept for later runs.

Its folder's name ends in a hash of the requirements and the Python version, so that changed
requirements make a new one. A folder that was not finished is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

from benchmarks.peers.hosting.contract import Contender

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "braid-peers"


class SetupFailed(Exception):
    """pip did not install a peer's packages."""


def python_of(contender: Contender, cache: Path = CACHE) -> Path:
    """The Python that runs ``contender``, its environment made if needed.

    Raises:
        SetupFailed: with the last lines of pip's messages.
    """
    if contender.requirements is None:
        return Path(sys.executable)
    folder = _folder(contender.requirements, cache)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            _make(folder, contender.requirements)
    return folder / "bin" / "python"


def versions_in(python: Path) -> dict[str, str]:
    if python == Path(sys.executable):
        return _versions(distributions())
    sites = [str(path) for path in python.parents[1].glob("lib/python*/site-packages")]
    return _versions(distributions(path=sites))


def _versions(distributions: Iterable[Distribution]) -> dict[str, str]:
    return {distribution.name.lower(): distribution.version for distribution in distributions}


def _folder(requirements: Path, cache: Path) -> Path:
    said = f"{platform.python_version()}\n{requirements.read_text()}"
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return cache / f"{requirements.parent.name}-{digest}"


def _make(folder: Path, requirements: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    print(f"setting up {folder}", file=sys.stderr)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    commands = [[sys.executable, "-m", "venv", str(folder)], [*pip, "-r", str(requirements)]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise SetupFailed(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    (folder / ".complete").touch()
