"""The server of HTTP/2 under damaged bytes of gRPC's own clients."""

from __future__ import annotations

import random

import psutil
import pytest

from campaigns.fuzz.http2 import RECORDINGS, attacked, damaged, recordings

MAX_GROWTH_BYTES = 256 << 20


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_no_damage_stops_the_server(count: int, *, tls: bool) -> None:
    before = psutil.Process().memory_info().rss
    async with attacked(tls=tls) as target:
        for seed in range(count):
            await target.attack(seed)
            if seed % 50 == 49:
                await target.check()
                assert target.findings == [], seed
    assert psutil.Process().memory_info().rss - before < MAX_GROWTH_BYTES


def test_the_recordings_are_whole_and_damage_follows_its_seed() -> None:
    assert len(recordings()) == len(list(RECORDINGS.iterdir())) == 3
    first, again, other = (damaged(random.Random(seed), recordings()[0]) for seed in (1, 1, 2))
    assert first == again != other
