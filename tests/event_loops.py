"""Event loops that a front end may run in, for tests of what depends on them."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def both_loops() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return what makes the loop of a test, by name; the hook of conftest.py in some folders."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
