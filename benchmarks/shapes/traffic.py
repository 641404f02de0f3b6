"""Clients that send a list of requests once, each waiting for its answer before the next."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter, sleep

import grpc
import numpy as np

from benchmarks.peers.load.calls import (
    CHANNEL_OPTIONS,
    MODEL_INFER,
    CallFailed,
    Target,
    is_right,
    message,
)
from benchmarks.peers.load.loops import WRONG
from benchmarks.peers.load.tensors import Question
from benchmarks.shapes.models import Arrays, Case, Oracle, Shape

_AFTER_FAILURE_S = 0.01


class Requests:
    """Requests of given shapes with seeded content."""

    def __init__(self, case: Case, shapes: Sequence[Shape], seed: int) -> None:
        self.case = case
        self.shapes = shapes
        self._seed = seed

    def inputs(self, position: int) -> Arrays:
        rng = np.random.default_rng([self._seed, position])
        return self.case.inputs(self.shapes[position], rng)

    def messages(self) -> Iterator[bytes]:
        """Serialised requests, built when they are asked for."""
        for position in range(len(self.shapes)):
            yield message(self.case.name, Question(self.inputs(position), {}, 0.0))

    def sample(self, count: int) -> set[int]:
        """Positions whose answers are to be checked."""
        rng = np.random.default_rng(self._seed)
        positions = rng.choice(len(self.shapes), min(count, len(self.shapes)), replace=False)
        return {int(position) for position in positions}

    def check(self, sent: Sent, oracle: Oracle) -> None:
        """Compare the answers that were kept with ONNX Runtime's; count the wrong ones."""
        for position, answer in sent.kept.items():
            if not is_right(oracle.question(self.inputs(position)), answer):
                sent.errors[WRONG] += 1
        sent.kept.clear()


@dataclass(slots=True)
class Sent:
    """What clients saw of a list of requests. Positions are those in the list."""

    seconds: float = 0.0  # until the last answer
    latency_us: dict[int, float] = field(default_factory=dict)  # by position, of answers
    kept: dict[int, bytes] = field(default_factory=dict)  # answers to check, by position
    errors: Counter[str] = field(default_factory=Counter)


def send(
    target: Target,
    messages: Iterable[bytes],
    clients: int,
    limit_s: float,
    kept: set[int],
    after_answer: Callable[[int], None] = lambda position: None,
) -> Sent:
    """Let ``clients`` share the messages; none is begun after ``limit_s`` seconds.

    Args:
        target: a server of gRPC.
        messages: in order; the next one is built outside the time of any.
        clients: threads, each with a connection of its own.
        limit_s: counts from the first request.
        kept: positions of the answers to keep.
        after_answer: called with a position by its client, outside the time of any request.

    Raises:
        CallFailed: there is no connection in time.
    """
    sent, lock, remaining = Sent(), threading.Lock(), enumerate(messages)
    failures: list[BaseException] = []

    def client(infer: Callable[..., bytes]) -> None:
        try:
            while perf_counter() - begun < limit_s:
                with lock:
                    position, request = next(remaining, (-1, b""))
                if position < 0:
                    return
                _one(infer, request, position)
                after_answer(position)
        except BaseException as error:  # to be raised where the clients are waited for
            failures.append(error)

    def _one(infer: Callable[..., bytes], request: bytes, position: int) -> None:
        since = perf_counter()
        try:
            answer = infer(request, timeout=target.timeout_s)
        except grpc.RpcError as error:
            with lock:
                sent.errors[error.code().name] += 1
            sleep(_AFTER_FAILURE_S)
            return
        took_s = perf_counter() - since
        with lock:
            sent.latency_us[position] = took_s * 1e6
            if position in kept:
                sent.kept[position] = answer

    with ExitStack() as stack:
        calls = [stack.enter_context(_connected(target)) for _ in range(clients)]
        begun = perf_counter()
        threads = [threading.Thread(target=client, args=[call], daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sent.seconds = perf_counter() - begun
    for failure in failures:
        raise failure
    return sent


@contextmanager
def _connected(target: Target) -> Iterator[Callable[..., bytes]]:
    with grpc.insecure_channel(target.address, options=CHANNEL_OPTIONS) as channel:
        try:
            grpc.channel_ready_future(channel).result(target.timeout_s)
        except grpc.FutureTimeoutError as error:
            raise CallFailed("no connection") from error
        yield channel.unary_unary(MODEL_INFER)
