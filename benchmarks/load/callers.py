"""Callers of one server that make one request, serialised once, over several connections."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from benchmarks.reports import percentile

INFER = "/braid.v1.InferenceService/Infer"
CONNECTIONS = 8
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


@dataclass
class Outcomes:
    """What the callers of one phase saw; times in seconds."""

    seconds: float = 0.0
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)  # RESOURCE_EXHAUSTED
    other: Counter[str] = field(default_factory=Counter)

    @property
    def answers_per_s(self) -> float:
        return len(self.answered) / self.seconds

    def row(self) -> dict[str, object]:
        return {
            "answers_per_s": round(self.answers_per_s, 1),
            "p50_ms": _ms(self.answered, 50),
            "p99_ms": _ms(self.answered, 99),
            "refused": len(self.refused),
            "refused_p50_ms": _ms(self.refused, 50),
            "refused_p99_ms": _ms(self.refused, 99),
            "refused_max_ms": _ms(self.refused, 100),
            "other_ends": dict(self.other),
        }


def _ms(seconds: Sequence[float], percent: float) -> float | None:
    return round(percentile(seconds, percent) * 1000, 2) if seconds else None


class Callers:
    """All callers of one server; a wrong answer ends as WRONG."""

    def __init__(
        self, address: str, message: bytes, is_right: Callable[[bytes], bool] = lambda answer: True
    ) -> None:
        self.address = address
        self.channels = [
            grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(CONNECTIONS)
        ]
        self._message, self._is_right = message, is_right
        self._calls: list[Any] = [channel.unary_unary(INFER) for channel in self.channels]

    async def one(
        self, number: int, due: float, outcomes: Outcomes, timeout_s: float = 30.0
    ) -> None:
        try:
            answer = await self._calls[number % CONNECTIONS](self._message, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                outcomes.refused.append(time.perf_counter() - due)
            else:
                outcomes.other[error.code().name] += 1
        else:
            outcomes.answered.append(time.perf_counter() - due)
            outcomes.other.update(() if self._is_right(answer) else ("WRONG",))

    async def closed(self, callers: int, seconds: float) -> Outcomes:
        """Each caller waits for its answer before it sends again."""
        outcomes, began = Outcomes(), time.perf_counter()

        async def caller(number: int) -> None:
            while time.perf_counter() < began + seconds:
                await self.one(number, time.perf_counter(), outcomes)

        await asyncio.gather(*map(caller, range(callers)))
        outcomes.seconds = time.perf_counter() - began
        return outcomes

    async def open(self, rate_per_s: float, seconds: float, timeout_s: float = 30.0) -> Outcomes:
        """Requests begin at Poisson moments; a latency counts from when one really began."""
        outcomes, running = Outcomes(), set()
        random = np.random.default_rng(3)
        due = began = time.perf_counter()
        number = 0
        while (due := due + random.exponential(1 / rate_per_s)) < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.ensure_future(self.one(number, time.perf_counter(), outcomes, timeout_s))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        outcomes.seconds = time.perf_counter() - began
        if running:
            await asyncio.wait(running)
        return outcomes

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()
