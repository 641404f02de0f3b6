"""Question 6: do stream priorities count when a graph is replayed?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.cuda_questions.answers import Row
from benchmarks.cuda_questions.lab import Job, Lab

CHAIN, CROWD = 60, 8  # launches


SMALL, LARGE = 256, 1024
"""Sizes of square matrices: of a chain, of a crowd that fills the device."""


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


def _chain_and_crowd(lab: Lab, small: int, large: int) -> tuple[list[Job], list[Job]]:
    one = lab.driver.empty((small, small), torch.float32).fill_(1.0)
    other = lab.driver.empty((large, large), torch.float32).fill_(1.0)
    return [Job(torch.mm, [one, one])] * CHAIN, [Job(torch.mm, [other, other])] * CROWD
