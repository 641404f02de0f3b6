"""Samples that a model is compiled with: inputs that errors are measured on."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from braid.compiler.imported_model import ImportedModel
from braid.core.errors import InvalidRequest
from braid.core.precision import INT8
from braid.engine.importer.host.samples import read_samples


@dataclass(frozen=True, slots=True)
class GivenSamples:
    """File of samples, and how many it holds; without one errors are of seeded inputs."""

    path: str = ""
    count: int = 0


NO_SAMPLES = GivenSamples()


async def read_given(imported: ImportedModel, path: Path) -> GivenSamples:
    """Read and check the samples of a model; InvalidRequest: they do not fit, or are gone."""
    try:
        count = await asyncio.to_thread(lambda: imported.check_samples(read_samples(path)))
    except FileNotFoundError as error:
        raise InvalidRequest(
            "the samples that the model was registered with are gone; register it with them again"
        ) from error
    return GivenSamples(str(path), count)


def check_samples(precision: str, *, given: bool) -> None:
    """Raise InvalidRequest if ``precision`` needs samples and none are ``given``."""
    if precision == INT8 and not given:
        raise InvalidRequest(
            "precision int8 takes the ranges of its integers from samples of the model's inputs; "
            "give some, e.g. with --samples FILE.npz"
        )
