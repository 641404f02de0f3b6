"""The model file that an artefact keeps for other runtimes, and what these say of it."""

from __future__ import annotations

from pathlib import Path

from braid.core.errors import PreconditionFailed
from braid.engine.importer.host.report import MODEL_FILE, check_file, read_report_of


def checked_file(artefact: Path, digest: str) -> Path:
    """Return the model file of the artefact of an upload with this SHA-256.

    Raises:
        PreconditionFailed: the artefact keeps none.
        InvalidArtefact: the file was changed after the import, or is of another upload.
        SystemShortage: it cannot be read for now.
    """
    path = artefact / MODEL_FILE
    if not path.is_file():
        raise PreconditionFailed("the import kept no file for other runtimes")
    check_file(artefact, read_report_of(artefact, digest), MODEL_FILE)
    return path


def first_line(error: Exception) -> str:
    """First line of an error's message, at most 300 characters."""
    text = str(error).strip().partition("\n")[0]
    return (text or type(error).__name__)[:300]
