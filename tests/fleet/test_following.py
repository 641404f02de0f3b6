"""Nodes hear of each other's changes through a real PostgreSQL, also after it was away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from braid.server.fleet.notifications import Change, Notifications
from tests.clock import until_true
from tests.fleet.postgres import Postgres
from tests.server.fleet.nodes import Node

pytestmark = pytest.mark.fleet

NEVER_S = 3600.0


class Follower:
    """A node that follows by itself."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        database = make_url(url)
        self.node = Node(name, folder, database)
        self.heard: list[Change] = []
        self.notifications = Notifications(database, 0.5)
        self.notifications.subscribe(self.heard.append)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *, poll_seconds: float = NEVER_S, hears: bool = True) -> None:
        await self.node.start()
        work = [self.node.following.run(poll_seconds)]
        if hears:
            self.notifications.subscribe(self.node.following.hear)
            work.append(self.notifications.run())
        self._tasks = [asyncio.ensure_future(each) for each in work]
        if hears:
            await until_true(lambda: bool(self.heard))  # it listens
        await until_true(lambda: bool(self.node.followed.looks))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.node.stop()


@pytest.fixture
async def pair(tmp_path: Path, postgres_server: Postgres) -> AsyncIterator[list[Follower]]:
    """Followers a and b on an empty database; not started."""
    url = postgres_server.create(f"following-{tmp_path.name}")
    found = [Follower(name, tmp_path, url) for name in ("a", "b")]
    yield found
    for each in found:
        await each.stop()


async def test_the_lag_is_that_of_the_databases_clock(pair: list[Follower]) -> None:
    a, b = pair
    for each in pair:
        await each.start()

    await a.node.register("net", b"one")
    await until_true(lambda: b.node.answering == {("net", 1)})
    await until_true(lambda: any(lag_s is not None for lag_s in b.node.followed.lags_s))

    lags_s = [lag_s for lag_s in b.node.followed.lags_s if lag_s is not None]
    assert all(0 <= lag_s < 60 for lag_s in lags_s)


async def test_a_change_is_followed_without_being_told(pair: list[Follower]) -> None:
    a, b = pair
    await a.start(hears=False)
    await b.start(hears=False, poll_seconds=0.2)

    await a.node.register("net", b"one")

    await until_true(lambda: b.node.answering == {("net", 1)})
    assert b.heard == []
