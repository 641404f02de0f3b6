"""Retries of calls that failed because a process was killed or is starting.

Tries without progress are counted, not seconds: how long a try takes depends on what else the
machine does. Those in which the database was away do not count in work that another server may
take over: the registry stops that work when it is away for long.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from braid.core.errors import DatabaseUnavailable, Unavailable, WorkerDied

log = logging.getLogger("braid.jobs")

T = TypeVar("T")

PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0)
"""Seconds between tries. A stage that kills its worker each time ends them after ten restarts."""


IMPORT_TRIES = 8
"""Fewer tries than a measurement has: each import may use up the machine's memory."""


class RetriesExhausted(Unavailable):
    """A call failed in each of the tries it had."""

    def __init__(self, error: Unavailable, tries: int) -> None:
        super().__init__(f"{error} (tried {tries} times)")


class KeepsDying(Unavailable):
    """The worker died of a call, or beside it, in as many tries in a row as were allowed."""


@dataclass(frozen=True, slots=True)
class RetryPauses:
    """Pauses between tries in seconds, one for each further try."""

    pauses_s: tuple[float, ...] = PAUSES_S
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def pause(self, tries: int) -> None:
        await self.sleep(self.pauses_s[min(tries, len(self.pauses_s)) - 1])


@dataclass(frozen=True, slots=True)
class RetryWhileRestarting:
    """Makes calls, and repeats those that raise Unavailable; ``report`` gets a text per retry."""

    pauses: RetryPauses
    report: Callable[[str], None] = lambda what: None
    is_revocable: bool = False  # another server may take the work over
    most_deaths: int | None = None  # of the worker, in a row without progress

    async def __call__(
        self,
        call: Callable[[], Awaitable[T]],
        progress: Callable[[], int] = lambda: 0,
        most_tries: int | None = None,
    ) -> T:
        """Call, and call again while that raises Unavailable.

        Args:
            progress: grows when something was achieved that the next try need not do again.
            most_tries: in a row without progress; None: one more than there are pauses.

        Raises RetriesExhausted: it failed too often without progress. Raises KeepsDying: it died
        ``most_deaths`` times.
        """
        most = len(self.pauses.pauses_s) + 1 if most_tries is None else most_tries
        tries, deaths, achieved = 0, 0, progress()
        while True:
            try:
                return await call()
            except (RetriesExhausted, KeepsDying):
                raise
            except Unavailable as error:
                if progress() > achieved:
                    deaths = 0
                deaths += isinstance(error, WorkerDied)
                if deaths == self.most_deaths:
                    raise KeepsDying(f"the worker died {deaths} times") from error
                if not (self.is_revocable and isinstance(error, DatabaseUnavailable)):
                    now = progress()
                    tries, achieved = (1 if now > achieved else tries + 1), now
                    if tries >= most:
                        raise RetriesExhausted(error, tries) from error
                await self._pause(max(1, tries), error)

    async def _pause(self, tries: int, error: Unavailable) -> None:
        reason = str(error).partition(";")[0]
        log.info("trying again", extra={"reason": reason, "tries": tries})
        self.report(f"trying again ({ordinal(tries + 1)} try): {reason}")
        await self.pauses.pause(tries)


def ordinal(number: int) -> str:
    """Write a number as 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
