"""Request for one import, which the importer process gets in its command line."""

from __future__ import annotations

import dataclasses
import json
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

    def to_json(self) -> str:
        """Return JSON text, the inverse of ``request_from_json``."""
        return json.dumps(
            {
                "upload": str(self.upload.absolute()),
                "artefact": str(self.artefact.absolute()),
                "limits": dataclasses.asdict(self.limits),
                "example_shapes": {name: list(s) for name, s in self.example_shapes.items()},
            }
        )


def request_from_json(text: str) -> ImportRequest:
    """Read a request that ``ImportRequest.to_json`` wrote."""
    document = json.loads(text)
    shapes = document["example_shapes"].items()
    return ImportRequest(
        Path(document["upload"]),
        Path(document["artefact"]),
        ImportLimits(**document["limits"]),
        {name: tuple(shape) for name, shape in shapes},
    )
