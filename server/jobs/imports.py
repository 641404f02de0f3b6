"""Which imports run at the same time, and with how much each.

A small file waits for no large one: there is one place more, for small files only.

An import first gets what its file's size suggests. What needs more, as few models and some hostile
files do, begins again among its like, one at a time; so it does not hold up those that need little,
and all imports together use no more memory than the budget and the limit of one.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from braid.core.allowance import cpu_allowance
from braid.core.errors import ImportLimitExceeded
from braid.engine.importer.host.launch import ImporterCrashed
from braid.engine.importer.host.messages import OnProgress
from braid.engine.importer.host.request import GIB, Hints, ImportLimits

FIRST_MEMORY_BYTES = 3 * GIB  # beyond what the libraries take
LEAST_MEMORY_BYTES = GIB  # of a first try: one with less would often be made again
FIRST_MEMORY_A_BYTE = 8  # of the file: read, parsed, loaded by the reference, in double precision
FIRST_CPU_SECONDS = 60
FIRST_BYTES_A_SECOND = 1 << 20
RunImport = Callable[[Path, Path, ImportLimits, OnProgress, Hints], Awaitable[None]]
"""Imports an uploaded file within limits into an artefact folder."""

SMALL_BYTES = 1 << 20
"""Bytes of a small file."""

_MOST_PASSES = 8  # others that may begin before one that waits for more memory


def first_limits(
    limits: ImportLimits, file_bytes: int, together_bytes: int = sys.maxsize
) -> ImportLimits | None:
    """Limits of the first try of an import, within ``together_bytes``; None: it needs all."""
    usual = min(FIRST_MEMORY_BYTES, max(together_bytes // 2, LEAST_MEMORY_BYTES))
    memory = usual + FIRST_MEMORY_A_BYTE * file_bytes
    if memory > together_bytes or memory >= limits.memory_bytes:
        return None
    seconds = FIRST_CPU_SECONDS + file_bytes // FIRST_BYTES_A_SECOND
    return replace(
        limits,
        memory_bytes=memory,
        cpu_seconds=min(limits.cpu_seconds, seconds),
        is_first=True,
    )


@dataclass(slots=True, eq=False)
class _Waiting:
    bytes: int
    admitted: asyncio.Future[None]
    is_small: bool = False
    passed: int = 0  # how many began before it that came later


class MemoryBudget:
    """Bytes, reserved in the order of arrival; small reservations may pass large ones.

    One reservation for a small file is let in beside all others.
    """

    def __init__(self, total_bytes: int, at_once: int) -> None:
        self._total = total_bytes
        self._at_once = at_once
        self._used = 0
        self._users = 0
        self._beside: _Waiting | None = None  # small
        self._waiting: deque[_Waiting] = deque()

    @asynccontextmanager
    async def reserve(self, size_bytes: int, *, is_small: bool = False) -> AsyncIterator[None]:
        """Reserve bytes while the context is open; waits for them unless none are reserved."""
        waiting = _Waiting(size_bytes, asyncio.get_running_loop().create_future(), is_small)
        self._waiting.append(waiting)
        self._admit()
        try:
            await waiting.admitted
            yield
        finally:
            if waiting is self._beside:
                self._beside = None
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.admitted.done():
                self._used -= size_bytes
                self._users -= 1
            self._admit()

    def _admit(self) -> None:
        self._let_in_beside()
        kept: list[_Waiting] = []
        for waiting in list(self._waiting):
            if any(other.passed >= _MOST_PASSES for other in kept):
                break
            if waiting.admitted.cancelled():
                continue
            if not self._fits(waiting):
                kept.append(waiting)
                continue
            for other in kept:
                other.passed += 1
            self._waiting.remove(waiting)
            self._used += waiting.bytes
            self._users += 1
            waiting.admitted.set_result(None)

    def _let_in_beside(self) -> None:
        small = [w for w in self._waiting if w.is_small and not w.admitted.cancelled()]
        if small and self._beside is None and not self._fits(small[0]):
            self._beside = small[0]
            self._waiting.remove(small[0])
            small[0].admitted.set_result(None)

    def _fits(self, waiting: _Waiting) -> bool:
        if not self._users:
            return True
        return self._users < self._at_once and self._used + waiting.bytes <= self._total


class Imports:
    """Imports files, several at once within a budget. An ``ImportModel``."""

    def __init__(
        self, run: RunImport, limits: ImportLimits, together_bytes: int, at_once: int = 0
    ) -> None:
        """At most ``at_once`` first tries run at once; 0: one for each CPU, at least two."""
        self._run = run
        self._limits = limits
        at_once = at_once or max(2, cpu_allowance().threads)
        self._budget = MemoryBudget(together_bytes, at_once)
        self._together_bytes = together_bytes
        self._alone = asyncio.Lock()

    async def __call__(
        self, upload: Path, artefact: Path, on_progress: OnProgress, hints: Hints
    ) -> None:
        """Import; the folder appears whole or not at all, also when cancelled.

        There is no progress before the import begins.
        """

        async def attempt(limits: ImportLimits) -> None:
            await self._run(upload, artefact, limits, on_progress, hints)

        file_bytes = _size(upload)
        first = first_limits(self._limits, file_bytes, self._together_bytes)
        if first is not None:
            try:
                is_small = 0 < file_bytes <= SMALL_BYTES
                async with self._budget.reserve(first.memory_bytes, is_small=is_small):
                    await attempt(first)
                return
            except (ImportLimitExceeded, ImporterCrashed) as error:
                if not _may_need_more(error, first, self._limits):
                    raise
                on_progress(0.0, "again with all limits; waiting for other such imports")
        async with self._alone:
            await attempt(self._limits)


def _size(upload: Path) -> int:
    """Bytes of an upload; 0 if it is missing, which the importer reports."""
    try:
        return upload.stat().st_size
    except OSError:
        return 0


def _may_need_more(
    error: ImportLimitExceeded | ImporterCrashed, first: ImportLimits, limits: ImportLimits
) -> bool:
    """True if a second try has more of what was short; a crash may be a lack of memory."""
    if isinstance(error, ImporterCrashed):
        return True
    return bool(error.limit) and getattr(first, error.limit) < getattr(limits, error.limit)
