"""A function known at some places: latencies by length, or by elements."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence


class Curve:
    """Values at some places, above 0, and between them."""

    def __init__(self, points: Mapping[float, float], *, rises: bool = False) -> None:
        """With ``rises``, noise in which a later one is less is averaged out."""
        self._places = sorted(points)
        self._values = [points[place] for place in self._places]
        if rises:
            self._values = _rising(self._values)

    def at(self, place: float) -> float | None:
        """Interpolate; beyond the places, in proportion to the nearest. None: there are none."""
        if not self._places:
            return None
        near = min(max(place, self._places[0]), self._places[-1])
        right = bisect_left(self._places, near)
        value = self._values[right]
        if near < self._places[right]:
            low, high, before = (
                self._places[right - 1],
                self._places[right],
                self._values[right - 1],
            )
            value = before + (value - before) * (near - low) / (high - low)
        return value * place / near


def _rising(values: Sequence[float]) -> list[float]:
    """Return the nearest values, by least squares, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean, and how many
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
