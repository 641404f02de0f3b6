"""Question 6: do stream priorities and green contexts count when a graph is replayed?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.cuda_questions.answers import Row
from benchmarks.cuda_questions.lab import Branches, Job, Lab
from braid.engine.cuda.driver.interface import Partition

PARTS = (16, 32, 64)
CHAIN, CROWD = 60, 8  # launches


SMALL, LARGE, WIDE = 256, 1024, 4096
"""Sizes of square matrices: of a chain, of a crowd, of one that fills any device."""


def priorities(lab: Lab, small: int = SMALL, large: int = LARGE) -> Iterator[Row]:
    """A chain of small kernels beside a crowd that fills the device and ends before the chain."""
    chain, crowd = _chain_and_crowd(lab, small, large)
    yield Row(
        "a chain beside a crowd",
        {
            "chain_us": lab.branches_us([chain]),
            "crowd_us": lab.branches_us([crowd]),
            "together_us": lab.branches_us([chain, crowd]),
            "together_urgent_us": lab.branches_us([chain, crowd], urgent=True),
        },
    )


def partitions(lab: Lab) -> Iterator[Row]:
    """A kernel that fills the device, on a part of it; the chain and the crowd, each on its own."""
    wide: Branches = [[_wide(lab)]]
    whole_us = lab.branches_us(wide)
    chain, crowd = _chain_and_crowd(lab, SMALL, LARGE)
    for count in PARTS:
        partition = Partition(count)
        refusal = lab.driver.partition_refusal(partition)
        if refusal:
            yield Row(f"{count} multiprocessors", {"refused": refusal})
            continue
        part_us = lab.branches_us(wide, partition=partition)
        yield Row(
            f"{count} of {lab.driver.multiprocessors} multiprocessors",
            {
                "whole_us": whole_us,
                "part_us": part_us,
                "times_as_slow": part_us / whole_us,
                "expected": lab.driver.multiprocessors / count,
                "chain_and_crowd_us": lab.branches_us([chain, crowd], partition=partition),
            },
        )


def _wide(lab: Lab) -> Job:
    square = lab.driver.empty((WIDE, WIDE), torch.float32).fill_(1.0)
    return Job(torch.mm, [square, square])


def _chain_and_crowd(lab: Lab, small: int, large: int) -> tuple[list[Job], list[Job]]:
    one = lab.driver.empty((small, small), torch.float32).fill_(1.0)
    other = lab.driver.empty((large, large), torch.float32).fill_(1.0)
    return [Job(torch.mm, [one, one])] * CHAIN, [Job(torch.mm, [other, other])] * CROWD
