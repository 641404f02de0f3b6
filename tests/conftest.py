"""For all tests: what the process inherits must not decide whether they pass.

What they start ends with them. Of several pytest processes (``pytest -n 2 --dist loadgroup``) each
takes whole files, and one takes all tests of a server that is shared between files.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.child_processes import kill_children_at_exit

kill_children_at_exit()

# How long an example takes is a matter of the machine.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# A shell that starts a job in the background makes it ignore SIGINT, and its children with it;
# some tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_SERVERS = ("oip_server", "shared")
"""Session fixtures that take seconds to set up."""

STARTS_SERVERS = ("tests/oip/", "tests/server/", "tests/client/test_demo.py", "tests/importer/")
"""What takes long comes first, so that no process is left alone with it at the end."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks at the marks afterwards
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what is run by one process, and in which order it is begun."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: not item.nodeid.startswith(STARTS_SERVERS))


def _group(item: pytest.Item) -> str:
    fixtures = getattr(item, "fixturenames", ())
    return next((name for name in SHARED_SERVERS if name in fixtures), item.nodeid.split("::")[0])


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that a test runs in this process set up logging to the test's captured stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
