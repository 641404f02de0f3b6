"""Asynchronous tests of this folder run in both event loops of the front end."""

from tests.event_loops import both_loops as pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
