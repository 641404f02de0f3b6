"""Rules for retries: whether a failed call is tried again, and after how many seconds.

    call fails ──> Attempts.delay_after(error) ──> seconds to wait, or None: raise the error

No I/O here: the sync and the async client ask the same ``Attempts`` and sleep in their own way.
A call is tried again only if that cannot do harm: inference and reads change nothing on the
server. Registrations, cancellations and deletions are never repeated. No wait goes past the
caller's deadline.
"""

import random
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import Enum

from braid_client.errors import BraidError, InvalidArgument, QueueFull, Unavailable


class Retry(Enum):
    """Kinds of calls by the failures after which they may be tried again."""

    NEVER = ()  # the call changes something
    READ = (Unavailable,)
    INFER = (Unavailable, QueueFull)  # QueueFull is the one that says when to come back


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter: waits of about 0.1, 0.2, 0.4, ... seconds."""

    max_attempts: int = 6  # of one call, the first included; 1 switches retries off
    initial_s: float = 0.1
    multiplier: float = 2.0
    max_s: float = 2.0
    jitter: float = 0.25  # each wait is longer or shorter by up to this part

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must be at least 0 and below 1, got {self.jitter}")

    def backoff_s(self, failures: int, chance: float) -> float:
        """Seconds to wait after ``failures`` failures in a row; ``chance`` in [0, 1)."""
        wait = min(self.initial_s * self.multiplier ** (failures - 1), self.max_s)
        return wait * (1 + self.jitter * (2 * chance - 1))


@dataclass(slots=True)
class Attempts:
    """Attempts of one call, bounded by its deadline and by the policy."""

    _policy: RetryPolicy
    _retry: Retry
    timeout_s: InitVar[float]
    _clock: Callable[[], float] = time.monotonic
    _chance: Callable[[], float] = random.random
    _deadline: float = field(init=False)
    _failures: int = 0

    def __post_init__(self, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise InvalidArgument(f"timeout_s must be positive, got {timeout_s}")
        self._deadline = self._clock() + timeout_s

    def remaining_s(self) -> float:
        return max(0.0, self._deadline - self._clock())

    def delay_after(self, error: BraidError) -> float | None:
        """Seconds to wait before the next attempt, or None if there must be none.

        The server's hint is a lower bound of the wait. If the deadline would pass meanwhile,
        the answer is None: the caller learns now what went wrong, not later that it was late.
        """
        self._failures += 1
        if not isinstance(error, self._retry.value) or self._failures >= self._policy.max_attempts:
            return None
        delay = self._policy.backoff_s(self._failures, self._chance())
        if error.retry_after_s is not None:
            delay = max(delay, error.retry_after_s * (1 + self._policy.jitter * self._chance()))
        return delay if delay < self.remaining_s() else None

    def succeeded(self) -> None:
        """Count failures anew, since the stream has brought a message."""
        self._failures = 0
