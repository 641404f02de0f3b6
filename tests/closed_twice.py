"""Descriptors that processes under test closed twice, by closed_twice.c.

environment ──LD_PRELOAD──> a process, and what it starts ──> lines "PID NUMBER" ──> faults
"""

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("closed_twice.c")


class ClosedTwice:
    def __init__(self, folder: Path) -> None:
        """Compile the library; skips where there is no C compiler."""
        library = folder / "closed_twice.so"
        self._told = folder / "closed_twice"
        try:
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)], check=True
            )
        except FileNotFoundError:
            pytest.skip("no C compiler here")
        self.environment = {"LD_PRELOAD": str(library), "CLOSED_TWICE": str(self._told)}

    def of(self, pid: int) -> list[int]:
        """Numbers that a process closed while they were not open."""
        lines = self._told.read_text().splitlines() if self._told.exists() else []
        found = (tuple(map(int, line.split())) for line in lines)
        return [number for process, number in found if process == pid]
