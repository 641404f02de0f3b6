"""Samples that a model was registered with: kept in the store, checked against its inputs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from braid.core.errors import InvalidRequest
from braid.engine.importer.host.samples import read_samples
from braid.server.jobs.imported_model import ImportedModel
from braid.server.jobs.services import JobServices


@dataclass(frozen=True, slots=True)
class GivenSamples:
    """File of samples, and how many it holds; without one errors are of seeded inputs."""

    path: str = ""
    count: int = 0


async def given_samples(imported: ImportedModel, services: JobServices) -> GivenSamples:
    """Samples of a model, read and checked.

    Raises:
        InvalidRequest: they do not fit its inputs, or are gone.
    """
    digest = imported.model.options.samples
    if not digest:
        return GivenSamples()
    await services.retry()(lambda: services.files.fetch_samples(digest))
    path = services.store.folder.sample_file(digest)

    def checked() -> int:
        return imported.check_samples(read_samples(path))

    try:
        return GivenSamples(str(path), await asyncio.to_thread(checked))
    except FileNotFoundError as error:
        raise InvalidRequest(
            "the samples that the model was registered with are gone; register it with them again"
        ) from error
