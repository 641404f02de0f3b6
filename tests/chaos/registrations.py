"""A model after the other: registered, followed to its job's end, asked, deleted."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from time import monotonic

import onnx

from braid_client import BraidError, Client, Job, Unavailable
from tests.chaos.traffic import BraidAsker, Tally, put, questions
from tests.models.small import small_cnn

JOB_SECONDS = 900.0  # for one job under blows; far longer than any should take
PAUSE_S = 0.2


class Registrations:
    """A thread that registers until told to stop; the last job is followed to its end."""

    def __init__(self, address: str, folder: Path, seed: int, tally: Tally) -> None:
        self.ended: Counter[str] = Counter()  # jobs that were accepted, by their last state
        self.lost: list[str] = []
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
                name = f"fresh-{number}"
                file = self._make(name)
                job = self._register(client, name, file)
                if job is not None and self._follow(client, job):
                    self._ask(name, file)
                    self._delete(client, name)

    def _make(self, name: str) -> Path:
        branches, size = self._chance.randint(2, 5), self._chance.randint(8, 40)
        file = small_cnn(self._folder / f"{name}.onnx", branches=branches, size=size)
        model = onnx.load(file)
        model.doc_string = name  # no two files are alike
        onnx.save(model, file)
        return file

    def _register(self, client: Client, name: str, file: Path) -> Job | None:
        """The job, once one is accepted; None: told to stop before."""
        while not self._stop.is_set():
            try:
                return client.register(name, file, batch_sizes=[1, 4])
            except Unavailable:
                self._stop.wait(PAUSE_S)
            except BraidError as error:
                self._surprise("RegisterModel", name, error)
        return None

    def _follow(self, client: Client, accepted: Job) -> bool:
        """Whether the job ended READY."""
        until, last = monotonic() + JOB_SECONDS, accepted
        while not last.ended and monotonic() < until:
            try:
                *_, last = client.watch_job(accepted.id, timeout_s=60)
            except BraidError as error:
                if not isinstance(error, Unavailable) and "deadline" not in str(error).lower():
                    self._surprise("WatchJob", accepted.model, error)
                self._stop.wait(PAUSE_S)
        self.ended[str(last.state)] += 1
        if last.state != "READY":
            self.lost.append(f"{accepted.model}: {last.state} {last.message}")
        return last.state == "READY"

    def _ask(self, name: str, file: Path) -> None:
        """The new model answers right, once the server is there."""
        asker = BraidAsker(self._address)
        for question in questions(name, file, count=4):
            while not put(asker, question, self._tally) and not self._tally.surprises:
                self._stop.wait(PAUSE_S)
        asker.close()

    def _delete(self, client: Client, name: str) -> None:
        while not self._stop.is_set():
            try:
                client.delete(name)
            except Unavailable:
                self._stop.wait(PAUSE_S)
            except BraidError as error:
                # An answer may have been lost with the server that gave it.
                if "not registered" not in str(error) and "no model" not in str(error):
                    self._surprise("DeleteModel", name, error)
                return
            else:
                return

    def _surprise(self, call: str, name: str, error: BraidError) -> None:
        status = "UNKNOWN" if error.code is None else error.code.name
        self._tally.count(status, f"{call} of {name}: {error}")
