"""A campaign: rounds of blows under load, and a calm after each in which everything must be well.

round: blow, light checks, blow, ...     in every second one the front end is killed, too
calm:  registrations and traffic held; models answer, rows, files, processes, metrics agree
end:   the same; then SIGTERM, and a start on the same store: the same models answer
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from campaigns.chaos import checks
from campaigns.chaos.blows import Blows
from campaigns.chaos.surroundings import Faults, Surroundings
from campaigns.registrations import Registrations
from campaigns.traffic import BraidAsker, Question, Tally, Traffic, put, questions
from tests.models.small import small_cnn
from tests.service.server_process import BRAID, ServerProcess, free_port

CALM_SECONDS = 600.0
"""Time in which all is well again after blows; a version that held its device up needs half."""

RESTART_SECONDS = 8.0
"""Time in which a killed worker, one that was killed again and again, is mostly back."""

_SETTINGS = {
    "BRAID_LOG_LEVEL": "INFO",
    "BRAID_PIN_THREADS": "false",  # also on machines that do other things
}

_TRACEBACK = re.compile(r"^(?:  \| )?Traceback \(most recent call last\)", re.MULTILINE)
"""Beginning of one, of a process or in the log; not what the log quotes of a child that had no
memory for its interpreter, whose job must say what became of it."""

STARTS = 5
"""Starts of a front end, some of which a fault of its surroundings may end."""


_WITHOUT_MEMORY = ("MemoryError", "failed to map segment", "error return without exception set")
"""Last words of a child whose memory a blow has taken."""

_CHAINED = ("another exception occurred:", "direct cause of the following exception:")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="of a client between calls")
    parser.add_argument("--mean-seconds", type=float, default=0.3, help="between two blows")
    parser.add_argument("--round", type=int, default=80, help="blows before each calm")
    parser.add_argument("--keep-logs", type=Path, metavar="DIR", help="copy the server's logs here")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="only add results up")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run rounds, or add up what earlier ones saw."""
    if options.sum:
        return added(options.sum)
    with tempfile.TemporaryDirectory(prefix="braid-chaos-") as folder:
        campaign = Campaign(Path(folder), options)
        try:
            campaign.run()
        finally:
            if options.keep_logs is not None:
                campaign.keep_logs(options.keep_logs)
    return campaign.result()


_COUNTS = ("kills", "blows", "calls", "jobs", "reasons of jobs", "broken")
_SUMS = ("minutes", "front ends started", "calms")
_LARGEST = ("longest time without an answer, s", "most further descriptors of a process")


def added(files: list[Path]) -> dict[str, Any]:
    """Several results as one."""
    parts = [json.loads(file.read_text()) for file in files]
    total: dict[str, Any] = {
        "environment": [part["environment"] for part in parts],
        "seed": [part["seed"] for part in parts],
    }
    for what in _COUNTS:
        total[what] = dict(sum((Counter(part[what]) for part in parts), Counter()))
    total["tracebacks"] = {k: v for part in parts for k, v in part.get("tracebacks", {}).items()}
    for what in _SUMS:
        total[what] = sum(part[what] for part in parts)
    for what in _LARGEST:
        total[what] = max(part[what] for part in parts)
    return total


class Campaign:
    """A server under load, blows and checks. ``broken`` counts what must not be."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        """Start the server and register the models that are asked."""
        self.broken: Counter[str] = Counter()
        self.tracebacks: dict[str, str] = {}  # the first of each last line
        self.calms = self.starts = 0
        self._folder, self._options = folder, options
        self._around = Surroundings(folder)
        self.missing = self._around.missing
        self._server = ServerProcess(
            self._around.store,
            command=BRAID,
            **{**_SETTINGS, **self._around.environment},  # type: ignore[arg-type]
        )
        self._logs: list[Path] = []
        self._port = str(free_port())
        self.blows = Blows(options.seed, self._server, self._around)
        self._files = checks.StoreFiles(self._around.store)
        self.descriptors = checks.Descriptors()
        self._shared_memory = checks.objects_of_shared_memory()
        self._asked: list[Question] = []

    def run(self) -> None:
        """Run rounds for as long as the options say."""
        try:
            self._start()
            self._register()
            address = self._server.address
            pause_s, clients = self._options.pause_ms / 1000, self._options.clients
            self._traffic = Traffic(address, clients, self._asked, self._options.seed, pause_s)
            self.registrations = Registrations(
                address, self._folder, self._options.seed, self.tally, self._asked
            )
            try:
                self._rounds()
            finally:
                self.registrations.stop()
                self._traffic.stop()
            self._end()
        finally:
            self._server.end()
            self._around.end()
        for log in self._logs:
            self._count_tracebacks(log.read_text(errors="replace"))
        for lost in self.registrations.lost:
            self.broken[f"job: {lost}"] += 1
        self.broken.update(self.tally.surprises)

    def result(self) -> dict[str, Any]:
        """What was seen, ready for JSON."""
        return {
            "left out": self.missing,
            "kills": dict(self.blows.killed),
            "blows": dict(self.blows.struck),
            "calls": dict(self.tally.outcomes),
            "jobs": dict(self.registrations.ended),
            "reasons of jobs": dict(self.registrations.reasons),
            "front ends started": self.starts,
            "calms": self.calms,
            "longest time without an answer, s": round(self.tally.longest_gap_s, 1),
            "most further descriptors of a process": self.descriptors.most_more,
            "broken": dict(self.broken),
            "tracebacks": self.tracebacks,
        }

    @property
    def tally(self) -> Tally:
        """How calls ended."""
        return self._traffic.tally

    def _register(self) -> None:
        with self._server.client() as client:
            for name, size in (("small", 8), ("wide", 16)):
                file = small_cnn(self._folder / f"{name}.onnx", branches=2, size=size)
                client.register(name, file, batch_sizes=[1, 4], planner="sequential", wait=True)
                self._asked += questions(name, file)

    def _rounds(self) -> None:
        until = time.monotonic() + 60 * self._options.minutes
        number = 0
        while time.monotonic() < until:
            self.blows.spares_front_end = number % 2 == 0
            number += 1
            for _ in range(self._options.round):
                time.sleep(self.blows.pause_s(self._options.mean_seconds))
                if self.blows.waits_for_answer():
                    self.tally.await_answer(RESTART_SECONDS)
                self._blow()
                if time.monotonic() > until:
                    break
            self._calm()

    def _blow(self) -> None:
        children = self._server.children
        what = self.blows.strike()
        if self._server.process.poll() is not None:
            if not self.blows.has_killed_front_end:
                self.broken[f"the front end ended after: {what}"] += 1
            self._count_left_behind(children)
            self._start()
        self._note(self._files.faults(), f"after {what}")

    # The front end.

    def _start(self) -> None:
        """Start the front end; what it stands on may end a start with a line that says why."""
        self.blows.has_killed_front_end = False
        for attempt in range(STARTS):
            self._server.log_path = self._folder / f"server-{self.starts}.log"
            self._logs.append(self._server.log_path)
            self.starts += 1
            try:
                self._server.start(grpc_port=self._port)
            except AssertionError:
                if attempt + 1 == STARTS:
                    raise
                self.broken[f"no start: {self._server.log[-300:]}"] += 1
            else:
                return

    def _count_left_behind(self, children: list[psutil.Process]) -> None:
        """Count processes that outlive their front end, well after its end."""
        _, alive = psutil.wait_procs(children, timeout=60)
        for process in alive:
            self.broken[f"left behind: {process}"] += 1
            process.kill()

    def _end(self) -> None:
        children = self._server.children
        if code := self._server.stop():
            self.broken[f"exit code {code}"] += 1
        self._count_left_behind(children)
        self._start()
        self._await(self._all_answer, "after the last start")

    # Checks.

    def _calm(self) -> None:
        """Wait until all is well."""
        self.blows.settle()
        self._around.set(Faults())
        self.calms += 1
        print(f"calm {self.calms} after {self.blows.killed}", file=sys.stderr, flush=True)
        with ExitStack() as held:
            held.enter_context(self._traffic.held())  # first: jobs give way to requests
            held.enter_context(self.registrations.held())
            self._await(self._all_answer, "answers")
            self._await(lambda: ["jobs go on"] * self._files.unfinished_jobs(), "jobs")
            self._await(self._files.leftovers, "store")
            names = {question.model for question in self._asked}
            self._await(lambda: checks.metric_faults(self._server, names), "metrics")
            self._await(lambda: checks.process_faults(self._server), "processes")
            self._await(lambda: self.descriptors.faults(self._server), "descriptors")
            self._await(
                lambda: checks.leftovers_beside(self._around, self._shared_memory), "beside"
            )
        self._note(self._files.faults(), "in the calm")

    def _all_answer(self) -> list[str]:
        """Models that do not answer right, each asked once."""
        asker = BraidAsker(self._server.address)
        by_model = {question.model: question for question in self._asked}
        silent = [name for name, asked in by_model.items() if not put(asker, asked, self.tally)]
        asker.close()
        return [f"{name} does not answer" for name in silent]

    def _await(self, look: Callable[[], list[str]], where: str) -> None:
        """Wait until a check finds nothing; count what it finds last."""
        until = time.monotonic() + CALM_SECONDS
        said: list[str] = []
        while faults := look():
            if faults != said:
                print(f"calm {self.calms}, {where}: waiting: {faults}", file=sys.stderr, flush=True)
                said = faults
            if time.monotonic() > until:
                self._note(faults, f"calm {self.calms}, {where}")
                return
            time.sleep(0.5)

    def _note(self, faults: list[str], where: str) -> None:
        for fault in faults:
            self.broken[f"{fault} ({where})"] += 1

    def _count_tracebacks(self, log: str) -> None:
        for part in _TRACEBACK.split(log)[1:]:
            last = next((line for line in part.splitlines()[1:] if line[:1].strip()), "")
            is_cause = part.rstrip().endswith(_CHAINED)  # of the next one, which tells
            if is_cause or any(words in last for words in _WITHOUT_MEMORY):
                continue
            self.broken[f"traceback in the log: {last[:200]}"] += 1
            self.tracebacks.setdefault(last[:200], part[:4000])

    def keep_logs(self, folder: Path) -> None:
        """Copy the server's logs."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self._logs:
            (folder / log.name).write_bytes(log.read_bytes())
