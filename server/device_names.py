"""The devices a server is told to use: ``cpu``, ``cpu:0-7`` or ``cuda:1``, separated by commas.

cpu        all cores that the process may use
cpu:0-7    these cores only, e.g. one NUMA node; others can be devices of their own
cuda:1     the second NVIDIA GPU, in the order of ``nvidia-smi``
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SYNTAX = re.compile(r"cpu(?::(\d{1,4})(?:-(\d{1,4}))?)?|cuda:(\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """One device, as an operator names it."""

    text: str
    gpu: int | None = None  # index; None: the CPU
    cores: range | None = None  # of the CPU; None: all

    def overlaps(self, other: DeviceName) -> bool:
        if self.gpu is not None or other.gpu is not None:
            return self.gpu == other.gpu
        if self.cores is None or other.cores is None:
            return True
        return self.cores[0] <= other.cores[-1] and other.cores[0] <= self.cores[-1]


def parse_device(text: str) -> DeviceName:
    """Parse one name. Raises ValueError: it names no device."""
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ValueError(f"unknown device {text!r}; known: cpu, cpu:FIRST-LAST (cores), cuda:INDEX")
    first, last, gpu = (None if part is None else int(part) for part in match.groups())
    if gpu is not None:
        return DeviceName(f"cuda:{gpu}", gpu=gpu)
    if first is None:
        return DeviceName(text)
    cores = range(first, (first if last is None else last) + 1)
    if not cores:
        raise ValueError(f"device {text!r} names no core: the first one comes after the last")
    return DeviceName(text, cores=cores)


def parse_devices(texts: Sequence[str]) -> tuple[DeviceName, ...]:
    """Parse names of devices. ValueError: none, an unknown one, or two share cores or a GPU."""
    if not texts:
        raise ValueError("name at least one device, e.g. cpu")
    names = tuple(map(parse_device, texts))
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            if name.text == other.text:
                raise ValueError(f"device {name.text} is named twice")
            if name.overlaps(other):
                raise ValueError(f"devices {name.text} and {other.text} share cores")
    return names
