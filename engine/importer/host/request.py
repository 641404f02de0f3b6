"""Request for one import, and its limits. Crossing one ends the import, never the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from braid.core.errors import ImportLimitExceeded

GIB = 1 << 30

# limit -> the setting of the server that raises it
SETTINGS = {
    "memory_bytes": "BRAID_IMPORT_MEMORY_BYTES",
    "cpu_seconds": "BRAID_IMPORT_WALL_SECONDS",
    "run_seconds": "BRAID_IMPORT_RUN_SECONDS",
    "wall_seconds": "BRAID_IMPORT_WALL_SECONDS",
}


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """Bounds of one importer process; the kernel holds all but the wall clock."""

    memory_bytes: int = 12 * GIB  # address space beyond that of the libraries
    cpu_seconds: int = 600  # of all threads together
    wall_seconds: float = 900.0
    run_seconds: float = 30.0  # CPU time of any one run of the model; more for large files
    file_bytes: int = 4 * GIB  # of any one file written
    open_files: int = 256
    is_first: bool = False  # the server tries again with more where this is not enough

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "is_first":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"import limit {name} must be a positive number, got {value!r}")


def limit_exceeded(limit: str, limits: ImportLimits, what: str) -> ImportLimitExceeded:
    value, setting = getattr(limits, limit), SETTINGS.get(limit)
    higher = f"raise {setting} on the server, or " if setting else ""
    return ImportLimitExceeded(
        f"the import was stopped: {what} (limit {value:g}); if the model is sound, {higher}upload "
        "a smaller model",
        limit,
    )


@dataclass(frozen=True, slots=True)
class Hints:
    """What the caller of an import knows of a model."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by input, to verify at
    samples: Path | None = None  # read only: inputs that the model takes, for where guesses fail
    batchable: bool = False  # rows do not influence each other, whatever the graph shows


NO_HINTS = Hints()


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Request to import an uploaded file."""

    upload: Path  # read only
    artefact: Path  # the folder to write; must not exist yet, its parent must
    limits: ImportLimits
    hints: Hints = NO_HINTS
