"""PostgreSQL, S3, fleets and model files of a campaign, and what one run of it has seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import onnx

from benchmarks.fleet.audit import Audit
from tests.fleet.fleet import THREADS, Fleet
from tests.fleet.machine import Machine
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3
from tests.models.small import small_cnn

PLANNER = "ios"
"""Planner of all registrations: one plan beside the sequential one, for speed."""

T = TypeVar("T")
_AS_USUAL: Mapping[str, str] = MappingProxyType({})
_numbers = count(1)


@dataclass(slots=True)
class Findings:
    """Figures of one run, and what must not have been."""

    figures: dict[str, float | int | str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def check(self, is_well: bool, what: str) -> None:
        if not is_well:
            self.broken.append(what)


@dataclass(frozen=True, slots=True)
class Stand:
    """What campaigns run on."""

    folder: Path
    postgres: Postgres
    s3: S3

    @contextmanager
    def fleet(
        self,
        threads: tuple[int, ...] = THREADS,
        skews: tuple[int, ...] = (),
        environment: Mapping[str, str] = _AS_USUAL,
        first: int = 1,
    ) -> Iterator[Fleet]:
        """A fleet with an empty database, started and audited; off at the end.

        Args:
            threads: of each machine's device.
            skews: seconds that the machines' wall clocks are wrong by.
            environment: variables of the servers.
            first: number of the first machine.
        """
        folder = self.folder / f"fleet-{next(_numbers)}"
        shared = self.postgres, self.s3
        with Fleet(folder, *shared, threads=threads, first=first, environment=environment) as fleet:
            for machine, seconds in zip(fleet.machines, skews, strict=False):
                machine.start(skew_seconds=seconds, wait=False)
            fleet.start()
            Audit(fleet).install()
            yield fleet

    def model(self, *, branches: int = 3, size: int = 8) -> tuple[str, Path]:
        name = f"net-{next(_numbers)}"
        file = small_cnn(self.folder / f"{name}.onnx", branches=branches, size=size)
        model = onnx.load(file)
        model.doc_string = name
        onnx.save(model, file)
        return name, file


def eventually(look: Callable[[], T], seconds: float) -> tuple[T, float]:
    """The last answer of ``look``, and the seconds until it was true (or the limit).

    Looks often at first, and at least each tenth of a second.
    """
    began = time.monotonic()
    while not (answer := look()) and (passed := time.monotonic() - began) < seconds:
        time.sleep(min(0.1, 0.01 + passed / 50))
    return answer, time.monotonic() - began


def machine_named(fleet: Fleet, name: str) -> Machine:
    return next(machine for machine in fleet.machines if machine.name == name)
