"""For all tests: what the process inherits must not decide whether they pass.

What they start ends with them. Of several pytest processes (``pytest -n 2``) each takes whole
files, and one takes all files that share a server.
"""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import ROOT
from tests.child_processes import kill_children_at_exit

kill_children_at_exit()

# What is loaded stays: to look through it again and again takes a quarter of the time of loading.
gc.disable()

# Children that are modules of the tests find them here: no child looks into its working folder.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as workers have it; beside load tests spin else
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))

# How long an example takes is a matter of the machine.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# A shell that starts a job in the background makes it ignore SIGINT, and its children with it;
# some tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# ``nohup`` ignores SIGHUP in the same way. A handler is not inherited, so that children end by it.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


SHARED = ("shared: ServerProcess", "target: Target")
"""Session fixtures that are servers, as the tests that take one name it."""

TAKES_LONG = (
    *("tests/service/", "tests/engine/importer/", "tests/engine/pt2/", "tests/library/"),
    *("tests/server/store/", "tests/server/inference/", "tests/server/devices/", "tests/compiler/"),
)
"""What takes long comes first, so that no process is left alone with it at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say in which order several processes begin files."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: not item.nodeid.startswith(TAKES_LONG))


def pytest_collection_finish() -> None:
    """Leave what all tests share, two million objects, out of the garbage collections to come."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out files, and as one those that share a server."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return server_or_file(nodeid.split("::")[0])

    return ByServer(config, log)


@cache
def server_or_file(file: str) -> str:
    """The session fixture that a test file shares with others, else the file."""
    if file.startswith("tests/service/oip/"):
        return "oip_server"
    text = (ROOT / file).read_text()
    return next((each for each in SHARED if each in text), file)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that a test runs in this process set up logging to the test's captured stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
