"""Tables, durations and sizes as the command line writes them."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from braid.core.measurement import Speed, speed_text, spread_text
from braid.server.console import formats
from braid_client import ScheduleSummary

WIDTH = 100
"""Most columns of what is printed for people, whatever the terminal. Programs take ``--json``."""


def console(*, stderr: bool = False) -> Console:
    """Make a console on the present streams, which may have been replaced."""
    stream = sys.stderr if stderr else sys.stdout
    made = Console(file=stream, highlight=False)
    made.width = min(made.width, WIDTH) if stream.isatty() else WIDTH
    return made


def say(text: str, *, stderr: bool = False) -> None:
    console(stderr=stderr).print(Text(text))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print rows under headings; columns ``right`` are aligned so, ``whole`` are not wrapped."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # Text: no markup in others' names
    console().print(table)


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def print_json(records: Sequence[Any]) -> None:
    print(json.dumps([asdict(record) for record in records], indent=2))


def duration_text(microseconds: float) -> str:
    """Text of a duration in a suitable unit: ``812 us``, ``2.31 ms``, ``1.20 s``."""
    return formats.duration(microseconds).replace("µ", "u")


def latency_text(latency_us: float, spread: float | None) -> str:
    """Text of a measured latency with its spread: ``2.31 ms (1.4%)``."""
    return f"{duration_text(latency_us)} ({spread_text(spread)})"


def summary_speed(plan: ScheduleSummary) -> str:
    """Text of a plan's speed beside the sequential plan, as ``speed_text`` writes it."""
    if not plan.speedup:
        return speed_text(None)
    return speed_text(Speed(plan.speedup, plan.speedup_least, plan.speedup_most))


def time_text(unix: float) -> str:
    return formats.utc(unix).strftime("%Y-%m-%d %H:%M:%S")


def seconds_text(seconds: float | None) -> str:
    """Text of a wait in seconds: ``?``, ``8 s``, ``2 min 05 s``."""
    return "?" if seconds is None else formats.left(seconds)
