from __future__ import annotations

import asyncio
import gc

from braid.core.keyed_locks import KeyedLocks


async def test_uses_of_one_key_take_turns_and_unused_locks_vanish() -> None:
    locks, steps = KeyedLocks(), list[str]()

    async def use(key: str) -> None:
        async with locks.of(key):
            steps.append(f"{key} begins")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            steps.append(f"{key} ends")

    await asyncio.gather(use("a"), use("a"), use("b"))
    gc.collect()

    assert [step for step in steps if step[0] == "a"] == ["a begins", "a ends"] * 2
    assert steps.index("b begins") < steps.index("a ends")
    assert len(locks) == 0
