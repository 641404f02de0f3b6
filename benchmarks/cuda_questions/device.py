"""Question 1: which device is this, do small kernels overlap, and do connections matter?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from benchmarks.cuda_questions.answers import Figure, Row
from benchmarks.cuda_questions.lab import Job, Lab
from braid.engine.cuda.identity import GpuIdentity

SPIN_US = 100.0
EAGER_US = 3000.0
EAGER_STREAMS = range(8, 24)
"""Indices that no branch has."""


def facts(identity: GpuIdentity) -> Iterator[Row]:
    figures: dict[str, Figure] = {
        "capability": ".".join(map(str, identity.capability)),
        "memory_gib": identity.memory_bytes / 2**30,
        "multiprocessors": identity.multiprocessors,
        **identity.software,
    }
    yield Row(identity.name, figures)


def overlap(lab: Lab) -> Iterator[Row]:
    """Kernels that need little of the device, one after the other and side by side."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")
    small = lab.driver.empty((128, 128), torch.float32).fill_(1.0)
    kinds = {
        "spins of 100 us": [_spin(lab)],
        "chains of 8 products of 128 x 128": [Job(torch.mm, [small, small])] * 8,
    }
    for name, jobs in kinds.items():
        for count in (2, 4, 8):
            serial_us = lab.branches_us([jobs * count])
            parallel_us = lab.branches_us([jobs] * count)
            yield Row(
                f"{count} {name}, {connections} connections",
                {"serial_us": serial_us, "parallel_us": parallel_us}
                | {"times_as_fast": serial_us / parallel_us},
            )
    yield from _beside_eager_work(lab, connections)


def _spin(lab: Lab) -> Job:
    def run() -> tuple[torch.Tensor, ...]:
        lab.hold_up(SPIN_US)
        return ()

    return Job(run)


def _beside_eager_work(lab: Lab, connections: str) -> Iterator[Row]:
    """A replay must not wait for eager work on other streams that leaves the device idle."""
    captured = lab.capture([[_spin(lab)]] * 8)
    alone_us = lab.timing(captured).latency_us
    for index in EAGER_STREAMS:
        lab.busy(lab.driver.stream(index), EAGER_US)
    beside_us = lab.replay_us(captured)
    lab.driver.synchronise()
    lab.driver.destroy(captured.graph)
    yield Row(
        f"8 branches beside {len(EAGER_STREAMS)} busy streams, {connections} connections",
        {"alone_us": alone_us, "beside_us": beside_us, "eager_us": EAGER_US},
    )
