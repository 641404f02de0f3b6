"""Measurements run to their end at once."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(task: Generator[object, None, T]) -> tuple[T, int]:
    """Run a measurement to its end; returns its result and how often it yielded."""
    yields = 0
    while True:
        try:
            next(task)
        except StopIteration as stop:
            return stop.value, yields
        yields += 1
