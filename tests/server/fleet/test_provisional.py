"""Provisional schedules of a fleet: who makes them again, and that the others take them over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braid.core.schedule import Provisional, Schedule
from tests.server.fleet.nodes import Node, until

BUSY = "threads waited for their cores"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Nodes a and b of one type, which serve what a registered on a busy machine."""
    a, b = Node("a", tmp_path), Node("b", tmp_path)
    for node in (a, b):
        await node.start()
    a.device.doubt = BUSY
    await a.register("net", b"one")
    await b.look()
    yield a, b
    for node in (a, b):
        await node.stop()


def always(_: Provisional) -> bool:
    return True


def stored(node: Node) -> Schedule:
    key = node.models.all_served()[0].schedule_keys[0]
    schedule = node.store.find_schedule(key)
    assert schedule is not None
    return schedule


async def test_one_node_makes_it_again_and_the_others_serve_it(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    assert stored(b).provenance.provisional is not None
    a.device.doubt = ""

    began = asyncio.Event()
    go_on = asyncio.Event()

    async def wait() -> None:
        began.set()
        await go_on.wait()

    a.device.before_comparing = wait
    job = await a.runner.compare_again("net", 1, always)
    assert job is not None
    await began.wait()
    assert await b.runner.compare_again("net", 1, always) is None, "that goes on already"
    go_on.set()
    await until(lambda: not a.runner.has_jobs)
    await b.look()

    assert stored(b).provenance.provisional is None
    (replica,) = b.models.all_served()
    assert replica.chosen[replica.schedule_keys[0]].is_promoted
    assert not replica.chosen[replica.schedule_keys[0]].is_provisional
    assert not b.device.compared


async def test_what_one_node_just_tried_is_not_due_on_another(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    await a.runner.compare_again("net", 1, always)
    await until(lambda: not a.runner.has_jobs)
    provisional = stored(a).provenance.provisional
    assert provisional is not None
    assert provisional.tries == 2

    assert await b.runner.compare_again("net", 1, lambda each: each.tries < 2) is None


async def test_a_node_hears_that_a_schedule_of_another_is_doubted(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    a.device.doubt = ""
    await a.runner.compare_again("net", 1, always)
    await until(lambda: not a.runner.has_jobs)
    await b.look()

    await a.runner.doubt("net", 1, batch_size=1, device="cpu", reason="it is faster")
    await b.look()

    (replica,) = b.models.all_served()
    assert replica.chosen[replica.schedule_keys[0]].is_provisional
    assert replica.chosen[replica.schedule_keys[0]].is_promoted
