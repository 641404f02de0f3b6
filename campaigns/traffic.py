"""Clients that ask without pause, and what became of each call."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

import grpc
import numpy as np
import onnxruntime
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from braid_client import BraidError, Client, RetryPolicy

TIMEOUTS_S = (1.0, 5.0, 30.0)
LATE_S = 20.0
"""Seconds after its deadline at which a call has ended even on a machine that is overrun."""

PAUSE_S = 0.02  # after a call that failed: the server may be away
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Question:
    """A model's name, an input for it, and the right answer."""

    model: str
    x: np.ndarray
    y: np.ndarray

    def is_answered_by(self, answer: np.ndarray) -> bool:
        """Whether ``answer`` is right, relative to the largest value."""
        if answer.shape != self.y.shape:
            return False
        return bool(np.abs(answer - self.y).max() <= TOLERANCE * max(1.0, np.abs(self.y).max()))


def questions(model: str, file: Path, count: int = 32) -> list[Question]:
    """Inputs of one to four rows for ``file``, with ONNX Runtime's answers."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    [spec] = session.get_inputs()
    rng = np.random.default_rng(len(model))
    asked = []
    for number in range(count):
        x = rng.normal(size=(1 + number % 4, *spec.shape[1:])).astype(np.float32)
        asked.append(Question(model, x, session.run(None, {spec.name: x})[0]))
    return asked


@dataclass(slots=True)
class Tally:
    """How calls ended. Safe to share between threads."""

    outcomes: Counter[str] = field(default_factory=Counter)
    surprises: Counter[str] = field(default_factory=Counter)  # what must not be
    longest_gap_s: float = 0.0  # between two right answers, of all clients together
    _answered_at: float = field(default_factory=monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def resume(self) -> None:
        """Count no time until now as one without an answer."""
        with self._lock:
            self._answered_at = monotonic()

    def await_answer(self, seconds: float) -> None:
        """Wait until a right answer comes, at most ``seconds``."""
        before, until = self.outcomes["OK"], monotonic() + seconds
        while self.outcomes["OK"] == before and monotonic() < until:
            sleep(0.02)

    def count(self, outcome: str, detail: str = "") -> None:
        """Count a call that ended with ``outcome``: a status, or WRONG."""
        with self._lock:
            self.outcomes[outcome] += 1
            if outcome == "OK":
                now = monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now - self._answered_at)
                self._answered_at = now
            elif outcome not in EXPECTED:
                self.surprises[f"{outcome}: {detail}"] += 1


EXPECTED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "REFUSED")
"""What a call may end with while processes die.

REFUSED is FAILED_PRECONDITION of a version whose runs held their device up: it was stopped.
"""


class Asker(Protocol):
    """A client of some library."""

    def ask(self, model: str, x: np.ndarray, timeout_s: float) -> np.ndarray:
        """The answer to ``x``, within ``timeout_s`` seconds.

        Raises:
            CallFailed: there is none.
        """

    def close(self) -> None:
        """Close its connection."""


class CallFailed(Exception):
    """A call ended with a status."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(details)
        self.status = status


class BraidAsker:
    """braid_client, without retries."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, retry=RetryPolicy(max_attempts=1))

    def ask(self, model: str, x: np.ndarray, timeout_s: float) -> np.ndarray:
        try:
            result = self._client.infer(model, {"x": x}, timeout_s=timeout_s)
        except BraidError as error:
            code = grpc.StatusCode.UNKNOWN if error.code is None else error.code
            raise CallFailed(code.name, str(error)) from error
        return result.outputs["y"]

    def close(self) -> None:
        self._client.close()


class TritonAsker:
    """tritonclient.grpc."""

    def __init__(self, address: str) -> None:
        self._client = triton.InferenceServerClient(address)

    def ask(self, model: str, x: np.ndarray, timeout_s: float) -> np.ndarray:
        tensor = triton.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        try:
            answer = self._client.infer(model, [tensor], client_timeout=timeout_s)
        except InferenceServerException as error:
            raise CallFailed(error.status().removeprefix("StatusCode."), str(error)) from error
        output: np.ndarray = answer.as_numpy("y")
        return output

    def close(self) -> None:
        self._client.close()


class Traffic:
    """Threads that ask ``asked`` in random order until told to stop; more may be added to it."""

    def __init__(
        self, address: str, clients: int, asked: list[Question], seed: int, pause_s: float = 0.0
    ) -> None:
        """Begin to ask; each client pauses for ``pause_s`` after an answer."""
        self.tally = Tally()
        self._pause_s = pause_s
        self._asked = asked
        self._stop = threading.Event()
        self._turns = [threading.Lock() for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._loop, args=(address, number, seed))
            for number in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _loop(self, address: str, number: int, seed: int) -> None:
        chance = random.Random(f"{seed} {number}")
        asker = (BraidAsker, TritonAsker)[number % 2](address)
        while not self._stop.is_set():
            with self._turns[number]:
                is_right = self.ask(asker, chance)
            self._stop.wait(self._pause_s if is_right else PAUSE_S)
        asker.close()

    def ask(self, asker: Asker, chance: random.Random) -> bool:
        """Put one question; returns bool: the answer was right."""
        question, timeout_s = chance.choice(self._asked), chance.choice(TIMEOUTS_S)
        return put(asker, question, self.tally, timeout_s)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Ask nothing while the context is open; calls under way have ended when it opens."""
        with ExitStack() as turns:
            for turn in self._turns:
                turns.enter_context(turn)
            yield
        self.tally.resume()

    def stop(self) -> Tally:
        """End all clients, and say what they saw."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.tally


def put(asker: Asker, question: Question, tally: Tally, timeout_s: float = TIMEOUTS_S[-1]) -> bool:
    """Put a question and count what comes back; returns bool: it was the right answer."""
    began = monotonic()
    try:
        answer = asker.ask(question.model, question.x, timeout_s)
    except CallFailed as failed:
        took_s = monotonic() - began
        if took_s > timeout_s + LATE_S:
            tally.count("LATE", f"{question.model}: {failed.status} after {took_s:.0f} s")
        is_refused = failed.status == "FAILED_PRECONDITION" and "held its device up" in str(failed)
        tally.count("REFUSED" if is_refused else failed.status, f"{question.model}: {failed}")
        return False
    is_right = question.is_answered_by(answer)
    tally.count("OK" if is_right else "WRONG", question.model)
    return is_right
