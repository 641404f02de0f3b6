"""A contender in a process of its own: lines to it, lines from it, each with a time limit."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path


class ContenderProcess:
    """A process that runs a network when told; it prints ``ready`` first, once it is warm."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                text=True,
                process_group=0,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")

    def line(self, timeout_s: float | None = None) -> str:
        """What it says next.

        Raises:
            RuntimeError: it ended, with the last line of its log; or it takes longer than that.
        """
        line = self._next(timeout_s)
        if not line:
            self._lines.put("")  # whoever asks next is told the same
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError("".join(last) or f"exit status {self._process.wait()}")
        return line.rstrip("\n")

    def _next(self, timeout_s: float | None) -> str:
        """Wait for a line, a second at a time: while all are stopped the clock goes on."""
        for _ in count() if timeout_s is None else range(math.ceil(timeout_s)):
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=1.0)
        raise RuntimeError(f"no answer within {timeout_s:.0f} s")

    def ask(self, text: str, timeout_s: float | None = None) -> str:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next line says why
            self._process.stdin.write(f"{text}\n")
            self._process.stdin.flush()
        return self.line(timeout_s)

    def end(self) -> None:
        """End the process and what it started, which would hold its output open."""
        assert self._process.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
