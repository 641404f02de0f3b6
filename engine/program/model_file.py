"""The model file that an artefact keeps for other runtimes, and what these say of it."""

from __future__ import annotations

from pathlib import Path

from braid.core.errors import InvalidArtefact, PreconditionFailed
from braid.core.shortage import unreadable
from braid.engine.importer.host.report import MODEL_FILE, file_digest


def checked_file(artefact: Path, digest: str) -> Path:
    """Return the model file of an artefact, which has the given SHA-256.

    Raises:
        PreconditionFailed: the artefact keeps none.
        InvalidArtefact: the file was changed after the import.
        SystemShortage: it cannot be read for now.
    """
    path = artefact / MODEL_FILE
    if not path.is_file():
        raise PreconditionFailed("the import kept no file for other runtimes")
    try:
        unchanged = file_digest(path) == digest
    except OSError as error:
        raise unreadable(MODEL_FILE, error) from error
    if not unchanged:
        raise InvalidArtefact(f"{MODEL_FILE} was changed after the import")
    return path


def reason_of(error: Exception) -> str:
    """Reason in an error's message, at most 500 characters, in one line.

    OpenVINO says where in its sources it failed, in lines that end with a colon, and then why.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].startswith("Exception from ") and lines[0].endswith(":"):
        del lines[0]
    text = ""
    while lines and (not text or text.endswith(":")):
        text = f"{text} {lines.pop(0)}".strip()
    return (text or type(error).__name__)[:500]
