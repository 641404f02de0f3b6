"""The device that a model is compiled for, as a compilation sees it.

Cancelling a call stops what it measures.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from braid.core.errors import ImpossibleLatency, InvalidRequest
from braid.core.measurement import StageLatency
from braid.core.precision import AUTO
from braid.engine.link.messages import MeasureStage, ProgramRequest
from braid.engine.link.worker_process import OnProgress

R = TypeVar("R")

ATTEMPTS = 3
"""Number of attempts to measure a stage, as long as its latency is impossible, such as 0 us."""


class Device(Protocol):
    """A device on which models are measured as they will run."""

    name: str

    @property
    def device_key(self) -> str:
        """Text that names what a measurement on this device depends on."""

    @property
    def precisions(self) -> Sequence[str]:
        """Precisions that models can be computed in."""

    @property
    def runtimes(self) -> Sequence[str]:
        """Other runtimes that can run whole models there."""

    @property
    def software(self) -> Mapping[str, str]:
        """Versions of the libraries of the worker, by name."""

    async def ask(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        """Ask about a program of a loaded model; ``on_progress`` is told how far it is.

        Raises WorkerRestarting: there is no worker, or it died. DamagedArtefact: the device lost
        the model.
        """


async def measure(device: Device, request: MeasureStage) -> StageLatency:
    """Measure a stage, again as long as its latency cannot be; ``ATTEMPTS`` times at most."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ImpossibleLatency):
            return await device.ask(request)
    return await device.ask(request)


def check_offered(precision: str, devices: Sequence[Device]) -> None:
    """Raise InvalidRequest unless all ``devices`` can compute in ``precision``."""
    for device in devices:
        if precision not in (AUTO, *device.precisions):
            raise InvalidRequest(
                f"device {device.name} computes in {', '.join(device.precisions)}, not in "
                f"{precision}; register the model in a precision that every device of this "
                "server offers, or with precision auto"
            )
