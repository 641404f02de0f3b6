"""Long work in pieces: its result is the same, and others get their turns meanwhile."""

import asyncio
import random

import pytest

from braid.core.pieces import PIECE_BYTES, Turns, Work, finished, in_steps, joined


def counting(name: str, pieces: int, done: list[str]) -> Work[str]:
    """Work that notes each of its pieces."""
    for piece in range(pieces):
        if piece:
            yield
        done.append(name)
    return name


def test_work_is_finished_at_once_without_an_event_loop() -> None:
    done: list[str] = []

    assert finished(counting("a", 3, done)) == "a"
    assert done == ["a"] * 3


async def test_pieces_of_all_work_are_done_in_turns() -> None:
    turns, done = Turns(), list[str]()

    results = await asyncio.gather(*(turns.finish(counting(name, 5, done)) for name in "abc"))

    assert results == ["a", "b", "c"]
    assert done == ["a", "b", "c"] * 5


async def test_the_loop_goes_round_between_any_two_pieces() -> None:
    turns, done = Turns(), list[str]()
    running = asyncio.gather(*(turns.finish(counting(name, 20, done)) for name in "abc"))
    await asyncio.sleep(0)
    assert done == ["a", "b", "c"]  # first pieces wait for nothing

    while not running.done():
        done.append("round")
        await asyncio.sleep(0)

    pieces = [each for each in " ".join(done[3:]).split("round") if each.strip()]
    assert {len(each.split()) for each in pieces} == {1}
    assert len(pieces) == 57


async def test_work_of_one_piece_waits_for_nobody() -> None:
    turns, done = Turns(), list[str]()
    long = asyncio.ensure_future(turns.finish(counting("long", 100, done)))
    await asyncio.sleep(0)

    async with asyncio.timeout(0):
        assert await turns.finish(counting("short", 1, done)) == "short"

    assert done == ["long", "short"]
    long.cancel()


async def test_work_that_fails_or_is_cancelled_leaves_the_turn_to_others() -> None:
    turns, done = Turns(), list[str]()

    def failing() -> Work[None]:
        yield
        raise ValueError("no")

    cancelled = asyncio.ensure_future(turns.finish(counting("gone", 100, done)))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(ValueError, match="no"):
        await turns.finish(failing())

    assert await turns.finish(counting("a", 3, done)) == "a"
    assert await in_steps(counting("b", 3, done)) == "b"


async def test_work_that_takes_much_memory_goes_on_when_there_is_a_place() -> None:
    turns, among, done = Turns(), asyncio.Semaphore(1), list[str]()

    await asyncio.gather(*(turns.finish(counting(name, 4, done), among) for name in "abc"))

    assert done == [*"abc", *"aaa", *"bbb", *"ccc"]


async def test_what_is_made_one_by_one_is_made_when_it_is_asked_for() -> None:
    turns, made = Turns(), list[int]()

    def numbers() -> Work[None]:
        for number in range(5):
            made.append(number)
            yield

    async for _ in turns.each(numbers()):
        seen = len(made)
        await asyncio.sleep(0)
        assert len(made) == seen

    assert made == list(range(5))


@pytest.mark.parametrize("seed", range(5))
def test_joined_parts_are_those_of_bytes(seed: int) -> None:
    random_ = random.Random(seed)
    sizes = [0, 1, 100, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES]
    parts = [random_.randbytes(random_.choice(sizes)) for _ in range(random_.randint(0, 4))]
    given = [part if random_.random() < 0.5 else memoryview(part) for part in parts]

    found = finished(joined(given))

    assert type(found) is bytes
    assert found == b"".join(parts)


def test_many_bytes_are_joined_piece_by_piece() -> None:
    parts = [bytes(1000)] * 20_000

    assert 4 <= sum(1 for _ in joined(parts)) <= 6  # of 4 MiB, whatever the parts are
