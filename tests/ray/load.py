"""Clients that ask without pause, and what became of each call: status, time, gaps.

Each client has a connection of its own, and asks tritonclient's or braid.v1's method in turn. A
call that is not answered within its limit is counted, too: nothing is tried again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

LIMIT_S = 30.0
SHAPE = (1, 3, 16, 16)
PAUSE_S = 0.02
"""After a call that failed."""


def request(model: str, shape: Sequence[int]) -> service_pb2.ModelInferRequest:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[x.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=shape)
    return message


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed, by the monotonic clock in seconds."""

    began: float
    ended: float
    status: str
    words: str


@dataclass(slots=True)
class Load:
    """Calls of all clients together. Safe to share between threads."""

    addresses: Sequence[str]  # of the clients, in turn
    model: str
    clients: int
    outcomes: Counter[str] = field(default_factory=Counter)
    longest_gap_s: float = 0.0  # between two answers that were right, of all clients
    last_ok: float = field(default_factory=time.monotonic)
    failures: list[Failure] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, began: float, status: str, words: str = "") -> None:
        with self._lock:
            self.outcomes[status] += 1
            now = time.monotonic()
            if status == "OK":
                self.longest_gap_s = max(self.longest_gap_s, now - self.last_ok)
                self.last_ok = now
            else:
                self.failures.append(Failure(began, now, status, words[:200]))

    def ask(self, number: int, stopping: threading.Event) -> None:
        """Ask one address until told to stop."""
        address = self.addresses[number % len(self.addresses)]
        asked = request(self.model, SHAPE)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options=options) as channel:
            infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            while not stopping.is_set():
                began = time.monotonic()
                try:
                    infer(asked, timeout=LIMIT_S)
                except grpc.RpcError as error:
                    self.count(began, error.code().name, error.details() or "")
                    stopping.wait(PAUSE_S)
                else:
                    self.count(began, "OK")


@contextmanager
def loaded(load: Load) -> Iterator[Load]:
    """Keep the clients asking while the context is open."""
    stopping = threading.Event()
    threads = [
        threading.Thread(target=load.ask, args=(number, stopping)) for number in range(load.clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
