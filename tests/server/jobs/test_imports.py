"""Which imports run at the same time: fakes, no processes, no clock."""

import asyncio
from pathlib import Path

import pytest

from braid.core.errors import ImportLimitExceeded, ModelImportError
from braid.engine.importer.host.launch import ImporterCrashed
from braid.engine.importer.host.messages import OnProgress
from braid.engine.importer.host.request import GIB, NO_HINTS, Hints, ImportLimits
from braid.server.jobs.imports import Imports, MemoryBudget, first_limits


class Importer:
    """Notes what runs; ends when told to, with an error for the names that have one."""

    def __init__(self) -> None:
        self.running: dict[str, ImportLimits] = {}
        self.ends: dict[str, asyncio.Event] = {}
        self.errors: dict[tuple[str, bool], Exception] = {}  # name, is it the first try?

    async def __call__(
        self,
        upload: Path,
        artefact: Path,
        limits: ImportLimits,
        on_progress: OnProgress,
        hints: Hints,
    ) -> None:
        name = upload.name
        self.running[name] = limits
        try:
            if error := self.errors.get((name, limits.is_first)):
                raise error
            await self.ends.setdefault(name, asyncio.Event()).wait()
        finally:
            del self.running[name]


class Turns:
    """Imports of files that are not there (size 0), over the fake."""

    def __init__(self, folder: Path, together: int = 12 * GIB, at_once: int = 3) -> None:
        self.importer = Importer()
        self.folder = folder
        self.imports = Imports(self.importer, ImportLimits(), together, at_once)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._one(name))
            await self.settled()

    async def _one(self, name: str) -> None:
        await self.imports(
            self.folder / name,
            self.folder / f"{name}.artefact",
            lambda fraction, step: None,
            NO_HINTS,
        )

    async def end(self, name: str) -> None:
        self.importer.ends[name].set()
        await self.tasks[name]
        await self.settled()

    async def settled(self) -> None:
        """Let every task go on until it waits for something."""
        for _ in range(20):
            await asyncio.sleep(0)


SHORT = ImportLimitExceeded("no memory", "memory_bytes")


async def test_several_run_at_once_as_far_as_memory_goes(tmp_path: Path) -> None:
    turns = Turns(tmp_path, together=7 * GIB)  # of 3 GiB each

    await turns.begin("a", "b", "c")
    assert set(turns.importer.running) == {"a", "b"}

    await turns.end("a")
    assert set(turns.importer.running) == {"b", "c"}
    await turns.end("b")
    await turns.end("c")


async def test_a_small_file_waits_for_no_large_one(tmp_path: Path) -> None:
    for name in ("small", "tiny"):
        (tmp_path / name).write_bytes(b"a model")
    turns = Turns(tmp_path, together=7 * GIB)

    await turns.begin("a", "b", "c", "small", "tiny")
    assert set(turns.importer.running) == {"a", "b", "small"}

    await turns.end("small")
    assert set(turns.importer.running) == {"a", "b", "tiny"}
    for name in ("a", "b", "c", "tiny"):
        await turns.end(name)


async def test_what_needs_more_runs_again_alone_and_holds_up_no_other(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    for name in ("large", "larger"):
        turns.importer.errors[name, True] = SHORT

    await turns.begin("large", "larger", "small")

    assert set(turns.importer.running) == {"large", "small"}
    assert turns.importer.running["large"] == ImportLimits()
    await turns.end("large")
    assert set(turns.importer.running) == {"larger", "small"}
    await turns.end("larger")
    await turns.end("small")


async def test_a_crash_without_memory_is_tried_again_and_others_are_final(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    turns.importer.errors["crash", True] = ImporterCrashed("SIGSEGV")
    turns.importer.errors["loop", True] = ImportLimitExceeded("too long", "run_seconds")
    turns.importer.errors["wrong", True] = ModelImportError("not a model")

    await turns.begin("crash", "loop", "wrong")

    assert set(turns.importer.running) == {"crash"}
    for name in ("loop", "wrong"):
        with pytest.raises(ModelImportError):
            await turns.tasks[name]
    await turns.end("crash")


async def test_a_cancelled_import_gives_its_place_back(tmp_path: Path) -> None:
    turns = Turns(tmp_path, at_once=1)
    await turns.begin("running", "waiting", "next")

    for name in ("waiting", "running"):
        turns.tasks[name].cancel()
        await turns.settled()

    assert set(turns.importer.running) == {"next"}
    await turns.end("next")


async def test_small_ones_pass_one_that_waits_for_memory_but_not_for_ever() -> None:
    budget = MemoryBudget(total_bytes=10, at_once=100)
    began: list[str] = []

    async def user(name: str, size: int, end: asyncio.Event) -> None:
        async with budget.reserve(size):
            began.append(name)
            await end.wait()

    async def begin(name: str, size: int, end: asyncio.Event) -> asyncio.Task[None]:
        task = asyncio.create_task(user(name, size, end))
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    held, at_once = asyncio.Event(), asyncio.Event()
    at_once.set()
    tasks = [await begin("first", 5, held), await begin("large", 9, at_once)]
    tasks += [await begin(f"small {number}", 1, at_once) for number in range(20)]
    passed = [name for name in began if name.startswith("small")]
    held.set()
    await asyncio.gather(*tasks)

    assert len(passed) == 8
    assert began.index("large") == 1 + len(passed)
    assert len(began) == 22


def test_a_file_whose_first_try_would_need_everything_gets_it_at_once() -> None:
    small = first_limits(ImportLimits(), 1 << 20)

    assert small is not None
    assert small.is_first
    assert small.memory_bytes < ImportLimits().memory_bytes
    assert first_limits(ImportLimits(), 2 * GIB) is None
