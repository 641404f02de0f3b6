"""``pip install braid-serve``: the library runs where nothing is installed but what it requires.

The packages of the extra ``server``, and all others that tests have, cannot be imported by the
program and by the processes that it starts.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from deploy.sbom import normalised
from tests.supply_chain.delivered import closure

HOOK = """
import sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, *place):
        return None if name in {absent} else self._finder.find_spec(name, *place)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
LIBRARY = """
import sys
import numpy as np
import braid

with braid.compile(sys.argv[1], samples={"x": np.zeros((2, 3, 16, 16), np.float32)},
                   batch_sizes=[2], planner="ios", store=sys.argv[2]) as net:
    assert net(np.zeros((2, 3, 16, 16), np.float32)).shape[0] == 2
    net.save(sys.argv[3])
with braid.load(sys.argv[3]) as net:
    assert net.schedules[2].document.provenance.samples == 2
print(braid.__version__, "grpc" in sys.modules, "braid_client" in sys.modules)
"""


def of_the_server() -> set[str]:
    """Names of the distributions that only the extra brings."""
    return set(closure(extras=["server"])) - set(closure(extras=()))


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Variables of a Python that has the library and what it requires, and nothing else."""
    library = set(closure(extras=()))
    absent = {"braid_client"} | {
        module
        for module, owners in packages_distributions().items()
        if library.isdisjoint(map(normalised, owners))
    }
    assert {"grpc", "uvicorn", "sqlalchemy"} <= absent
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/sitecustomize.py").write_text(HOOK.format(absent=absent))
    return {**os.environ, "PYTHONPATH": str(tmp_path / "hook")}


def test_the_library_requires_no_transport_and_no_database() -> None:
    assert of_the_server() >= {
        *("grpcio", "grpcio-health-checking", "grpcio-reflection", "tritonclient"),
        *("sqlalchemy", "starlette", "uvicorn", "httptools", "uvloop", "orjson", "watchfiles"),
        *("prometheus-client", "rich", "shtab"),
    }


@pytest.mark.ci
def test_it_compiles_and_runs_without_them(
    tmp_path: Path, model: Path, environment: Mapping[str, str]
) -> None:
    places = [str(path) for path in (model, tmp_path / "cache", tmp_path / "saved")]

    ran = subprocess.run(
        [sys.executable, "-P", "-c", LIBRARY, *places],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[1:] == ["False", "False"]


@pytest.mark.parametrize("command", [["serve"], ["models"], []])
def test_its_console_script_says_in_one_line_what_to_install(
    command: list[str], environment: Mapping[str, str]
) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "braid", *command],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'braid-serve[server]'" in ran.stderr
