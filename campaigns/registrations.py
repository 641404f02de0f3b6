"""A model after the other: registered, followed to its job's end, asked, kept or deleted."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from time import monotonic

import onnx

from braid_client import (
    BraidError,
    Client,
    DeadlineExceeded,
    Job,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from campaigns.traffic import BraidAsker, Question, Tally, put, questions
from tests.models.small import small_cnn

JOB_SECONDS = 900.0  # for one job under blows; far longer than any should take
PAUSE_S = 0.2
MOST_KEPT = 6
SIZES = tuple(product(range(2, 6), range(8, 41)))
PLANNERS = ("sequential", "sequential", "greedy", "ios", "")  # the last: all of them

REASONS = (
    "importer was killed",
    r"\(tried \d+ times\)",
    "disk is full",
    "disk fails",
    "out of memory|needs? more memory|memory_bytes|BRAID_WORKER_MEMORY_BYTES",
)
"""What may stand in the message of a job that did not end READY, as regular expressions."""


class Registrations:
    """A thread that registers until told to stop; the last job is followed to its end.

    Some models are kept, and asked by the traffic from then on.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        seed: int,
        tally: Tally,
        asked: list[Question],
        most_kept: int = MOST_KEPT,
        sizes: Sequence[tuple[int, int]] = SIZES,
    ) -> None:
        """Begin to register models of ``sizes`` (their branches, and the width of their image).

        ``asked`` gets questions for the ``most_kept`` models that stay.
        """
        self.ended: Counter[str] = Counter()  # jobs that were accepted, by their last state
        self.reasons: Counter[str] = Counter()  # why they did not end READY, as documented
        self.lost: list[str] = []
        self._asked, self._may_keep, self._sizes = asked, most_kept, sizes
        self._turn = threading.Lock()
        self._address, self._folder, self._tally = address, folder, tally
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def stop(self) -> None:
        """Start no further one; returns when the last one has ended."""
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        number = 0
        with Client(self._address) as client:
            while not self._stop.is_set():
                number += 1
                with self._turn:
                    self._one(client, f"fresh-{number}")
                self._stop.wait(PAUSE_S)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Register nothing while the context is open; the job under way has ended then."""
        with self._turn:
            yield

    def _one(self, client: Client, name: str) -> None:
        file = self._make(name)
        job = self._register(client, name, file)
        if job is None:
            return
        if not self._follow(client, job) or not self._ask(name, file):
            self._delete(client, name)
        elif self._may_keep and self._chance.random() < 0.5:
            self._may_keep -= 1
            self._asked += questions(name, file)
        else:
            self._delete(client, name)

    def _make(self, name: str) -> Path:
        branches, size = self._chance.choice(self._sizes)
        file = small_cnn(self._folder / f"{name}.onnx", branches=branches, size=size)
        model = onnx.load(file)
        model.doc_string = name  # no two files are alike
        onnx.save(model, file)
        return file

    def _register(self, client: Client, name: str, file: Path) -> Job | None:
        """The job, once one is accepted; None: told to stop before."""
        planner = self._chance.choice(PLANNERS)
        while not self._stop.is_set():
            try:
                return client.register(name, file, batch_sizes=[1, 4], planner=planner)
            except BraidError as error:
                if not is_passing(error):
                    self._surprise("RegisterModel", name, error)
                self._stop.wait(PAUSE_S)
        return None

    def _follow(self, client: Client, accepted: Job) -> bool:
        """Follow a job to its end; returns bool: the model serves."""
        until, last = monotonic() + JOB_SECONDS, accepted
        while not last.ended and monotonic() < until:
            try:
                *_, last = client.watch_job(accepted.id, timeout_s=60)
            except BraidError as error:
                if not is_passing(error):
                    self._surprise("WatchJob", accepted.model, error)
                self._stop.wait(PAUSE_S)
        self.ended[str(last.state)] += 1
        if last.state != "READY":
            reasons = [reason for reason in REASONS if re.search(reason, last.message)]
            self.reasons.update(reasons[:1])
            if not reasons:
                self.lost.append(f"{accepted.model}: {last.state} {last.message}")
        return last.serves

    def _ask(self, name: str, file: Path) -> bool:
        """Ask the new model until it answers right; returns bool: it did."""
        asker, until = BraidAsker(self._address), monotonic() + JOB_SECONDS
        try:
            for question in questions(name, file, count=4):
                while not put(asker, question, self._tally):
                    if monotonic() > until:
                        self.lost.append(f"{name}: it does not answer")
                        return False
                    self._stop.wait(PAUSE_S)
        finally:
            asker.close()
        return True

    def _delete(self, client: Client, name: str) -> None:
        """Delete a model, trying while the server is away."""
        until = monotonic() + JOB_SECONDS
        while monotonic() < until:
            try:
                client.delete(name)
            except NotFound:  # an answer was lost with the server that gave it
                return
            except BraidError as error:
                if not is_passing(error):
                    self._surprise("DeleteModel", name, error)
                self._stop.wait(PAUSE_S)
            else:
                return
        self.lost.append(f"{name}: it cannot be deleted")

    def _surprise(self, call: str, name: str, error: BraidError) -> None:
        status = "UNKNOWN" if error.code is None else error.code.name
        self._tally.count(status, f"{call} of {name}: {error}")


def is_passing(error: BraidError) -> bool:
    """True for what a call may end with while processes die and disks are full."""
    return isinstance(error, Unavailable | DeadlineExceeded | ResourceExhausted)
