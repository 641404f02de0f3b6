"""Where deploy/ and its schemas lie, and how tests ask for a program that may be absent."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from braid.server.settings import PREFIX, Settings
from tests import ROOT

DEPLOY = ROOT / "deploy"


def program(name: str, package: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (Debian package {package}): apt-get install {package}")
    return found


def shipped(package: str, file: str) -> Path:
    """A file that an installed package ships; the package is never imported."""
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / file).exists():
            return Path(place) / file
    pytest.skip(f"package {package} is not installed: pip install --no-deps -r tests/schemas.txt")


def unknown_settings(names: list[str]) -> set[str]:
    """Names of BRAID_* variables that the server does not read."""
    fields = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return {name for name in names if name.startswith(PREFIX)} - fields
