"""Which lengths to schedule, of a model whose requests are padded along one axis.

A row of length i runs padded in the next scheduled length j, or unpadded where that takes less. So,
with the rows w(i), and seconds u(i) unpadded and p(j) in a plan, both between measured ones:

    best(j, m) = min over i < j of  best(i, m - 1) + sum over i < l <= j of  w(l) min(u(l), p(j))

best(j, m) is what all rows up to length j take, with j as the last of m chosen lengths. What is
beyond the last one runs unpadded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf

from braid.core.errors import BraidError

MOST_CHOSEN = 4
"""Lengths that are chosen: each has plans, and weights laid out for them, of its own."""

HARDLY_MORE = 0.01
"""Fewer lengths are chosen if they take at most this part longer than the best."""


LEAST_ROWS = 500
"""Rows since the last choice before another one is made."""

Seconds = Callable[[int], float | None]


@dataclass(frozen=True, slots=True)
class LengthChoice:
    """Lengths, and the expected seconds of all rows of a histogram with them."""

    lengths: tuple[int, ...]
    seconds: float


def expected_s(
    rows: Mapping[int, int], unpadded_s: Seconds, planned_s: Seconds, lengths: Collection[int]
) -> float:
    """Return the expected seconds of all rows where these lengths have plans."""
    total_s = 0.0
    for length, count in rows.items():
        longer = min((one for one in lengths if one >= length), default=None)
        planned = inf if longer is None else _known(planned_s, longer)
        total_s += count * min(_known(unpadded_s, length), planned)
    return total_s


def choose_lengths(
    rows: Mapping[int, int],
    unpadded_s: Seconds,
    planned_s: Seconds,
    fixed: Collection[int] = (),
    most: int = MOST_CHOSEN,
) -> LengthChoice:
    """Return the lengths that minimise ``expected_s``, beside ``fixed`` ones; few if many tie.

    Candidates are those of ``rows``. ``unpadded_s`` and ``planned_s`` give seconds of a row by
    length. Cost: O(n^2) sums and O(n^2 most) steps for n lengths.
    """
    lengths = sorted({*rows, *fixed})
    weights = [rows.get(length, 0) for length in lengths]
    alone_s = [_known(unpadded_s, length) for length in lengths]
    # By number of chosen lengths: the last length -> least seconds up to it, and the lengths.
    best: list[dict[int, tuple[float, tuple[int, ...]]]] = [{} for _ in range(most + 1)]
    best[0][-1] = 0.0, ()
    for j, length in enumerate(lengths):
        planned = _known(planned_s, length)
        is_fixed, within_s = length in fixed, 0.0
        for i in range(j - 1, -2, -1):  # the scheduled length before; -1: none
            within_s += weights[i + 1] * min(alone_s[i + 1], planned)
            for m in range(is_fixed ^ 1, most + 1):
                before = best[m - (not is_fixed)].get(i)
                if before is None:
                    continue
                total_s = before[0] + within_s
                if total_s < best[m].get(j, (inf,))[0]:
                    chosen = before[1] if is_fixed else (*before[1], length)
                    best[m][j] = total_s, chosen
            if i >= 0 and lengths[i] in fixed:
                break  # it is the next one for what is shorter
    last_fixed = max((i for i, length in enumerate(lengths) if length in fixed), default=-1)
    beyond_s = [0.0] * (len(lengths) + 1)
    for i in range(len(lengths) - 1, -1, -1):
        beyond_s[i] = beyond_s[i + 1] + weights[i] * alone_s[i]
    by_count = [
        min(
            (LengthChoice(chosen, total_s + beyond_s[j + 1]) for j, (total_s, chosen) in at.items()
             if j >= last_fixed),
            key=lambda choice: choice.seconds,
            default=None,
        )
        for at in best
    ]  # fmt: skip
    choices = [choice for choice in by_count if choice is not None]
    least_s = min(choice.seconds for choice in choices)
    return next(choice for choice in choices if choice.seconds <= least_s * (1 + HARDLY_MORE))


def _known(seconds: Seconds, length: int) -> float:
    value = seconds(length)
    if value is None:
        raise LatencyUnknown(f"nothing is known of length {length}")
    return value


class LatencyUnknown(BraidError):
    """Nothing was measured yet that says what a length takes."""
