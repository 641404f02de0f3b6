"""A contender's server with one model: its process tree, when it was ready, what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load.children import ChildFailed, free_ports, running
from benchmarks.peers.hosting import keeper
from benchmarks.peers.hosting.contract import Contender
from benchmarks.peers.hosting.environments import python_of

START_S = 300.0
"""Seconds that a server has from its start to READY."""
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Hosting:
    """What a server is asked to serve."""

    model_file: Path
    model: str
    threads: int
    batch_sizes: Sequence[int]  # (1,): no dynamic batching


class Server:
    """A running server."""

    def __init__(self, contender: Contender, process: subprocess.Popen[str], log: Path) -> None:
        self.contender = contender
        self.address = ""
        self._process = process
        self._log = log
        self.started = time.perf_counter()  # seconds

    def await_line(self, *words: str, limit_s: float = START_S) -> str:
        """Wait until the program has printed a line that is one of ``words``; returns the first.

        ``limit_s`` seconds count from its start.

        Raises:
            ChildFailed: it ended, or did not print one in time; with its last messages.
        """
        while True:
            lines = self._log.read_text(errors="replace").splitlines()
            if matching := [line for line in lines if line in words]:
                return matching[0]
            late = time.perf_counter() - self.started > limit_s
            if late or self._process.poll() is not None:
                raise ChildFailed(self.failure(f"printed none of {' '.join(words)}"))
            time.sleep(_POLL_S)

    def failure(self, reason: str) -> str:
        tail = self._log.read_text(errors="replace")[-3000:]
        return f"{self.contender.name}: {reason}\n{tail}"

    def check(self) -> None:
        if self._process.poll() is not None:
            raise ChildFailed(self.failure(f"ended with status {self._process.returncode}"))

    def memory_mib(self) -> float:
        """Proportional set size of the whole tree."""
        total = 0
        for process in self._tree():
            try:
                total += process.memory_full_info().pss
            except psutil.Error:  # it has ended
                continue
        return round(total / 2**20, 1)

    def cpu_s(self) -> float:
        """Processor time that the tree has used, in seconds."""
        total = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total

    def _tree(self) -> Iterator[psutil.Process]:
        for pid in keeper.descendants(self._process.pid):
            try:
                yield psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue


@contextmanager
def serving(contender: Contender, hosting: Hosting, folder: Path) -> Iterator[Server]:
    """Start ``contender``; its files go to ``folder``. All its processes end with the context."""
    folder.mkdir(parents=True)
    (port,) = free_ports(1)
    log = folder / "log"
    command = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid())]
    command += [
        *(str(python_of(contender)), "-u"),
        str(contender.folder / "serve.py"),
        f"--model={hosting.model_file}",
        f"--name={hosting.model}",
        f"--port={port}",
        f"--threads={hosting.threads}",
        f"--batch-sizes={','.join(map(str, hosting.batch_sizes))}",
        f"--folder={folder}",
        *contender.arguments,
    ]
    with running(command, cwd=folder, log=log) as process:
        server = Server(contender, process, log)
        server.address = f"127.0.0.1:{port}"
        yield server
