"""For all tests: what the process inherits must not decide whether they pass.

And what they start ends with them.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from tests.child_processes import kill_children_at_exit

kill_children_at_exit()

# A shell that starts a job in the background makes it ignore SIGINT, and its children with it;
# some tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that a test runs in this process set up logging to the test's captured stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
