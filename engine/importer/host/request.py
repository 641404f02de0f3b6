"""Request for one import, which the importer process gets in its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from braid.engine.importer.host.limits import ImportLimits


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Request to import an uploaded file."""

    upload: Path  # read only
    artefact: Path  # the folder to write; must not exist yet, its parent must
    limits: ImportLimits
    example_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # by input: shapes to verify at, where the caller knows them
