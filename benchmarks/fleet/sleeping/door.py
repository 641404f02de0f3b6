"""HAProxy before sleeping servers: the shipped configuration, with a log of each request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.haproxy import Addresses, haproxy

_LOGGED = 'log-format "%s %Ts %Tw %Ta"'
_LINE = re.compile(r"^(?:<\d+>)?node-(\d+) (-?\d+) (-?\d+) (-?\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Passed:
    """One request as HAProxy saw it; milliseconds."""

    node: int  # from 1
    began: int  # seconds since 1970
    waited_ms: int  # at the door, for a free slot
    whole_ms: int  # from its first byte to the last one of its answer


class LoggingDoor:
    """A running HAProxy and what it has logged."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self._log = log
        self._read_size = 0

    def passed(self) -> list[Passed]:
        """Return the requests that ended since the last call."""
        text = self._log.read_text(errors="replace")
        new, self._read_size = text[self._read_size :], len(text)
        return [
            Passed(int(node), int(began), int(waited), int(whole))
            for node, began, waited, whole in _LINE.findall(new)
        ]


@contextmanager
def logging_door(
    folder: Path, nodes: Sequence[Addresses], weights: Sequence[int]
) -> Iterator[LoggingDoor]:
    """Put HAProxy before nodes, of which each has a weight."""
    folder.mkdir()
    weight = iter(weights)

    def change(text: str) -> str:
        text = text.replace("local0 notice", "local0 info")
        text = text.replace("    option dontlog-normal\n", f"    {_LOGGED}\n")
        return re.sub(r"20s weight \d+", lambda _: f"20s weight {next(weight)}", text)

    with haproxy(folder, nodes, change) as running:
        yield LoggingDoor(running.address, folder / "haproxy.log")
