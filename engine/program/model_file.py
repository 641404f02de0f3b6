"""The model file that an artefact keeps for other runtimes, and what these say of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from braid.core.errors import InvalidArtefact, ModelImportError, PreconditionFailed
from braid.core.shortage import unreadable
from braid.engine.importer.host.report import MODEL_FILE, file_digest
from braid.engine.importer.upload.archive import Archive, is_zip


@contextmanager
def opened_file(artefact: Path, digest: str) -> Iterator[Path]:
    """Give the body the ONNX file that an artefact keeps, which has the given SHA-256.

    Of a zip with external data it is an unpacked copy, which goes when the body ends: whoever
    needs the weights longer has them in memory, or mapped, by then. Raises ``InvalidArtefact`` if
    it was changed, ``PreconditionFailed`` if none is kept or no room is left, ``SystemShortage``.
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
    if not is_zip(path):
        yield path
        return
    with TemporaryDirectory(prefix="braid-model-") as folder:
        try:
            model = Archive(path).unpack(Path(folder))
        except ModelImportError as error:  # the import took it
            raise InvalidArtefact(str(error)) from error
        except OSError as error:
            raise PreconditionFailed(
                f"the model and its data cannot be unpacked in {folder}: {error.strerror}"
            ) from error
        yield model


def reason_of(error: Exception) -> str:
    """One line of 500 characters: OpenVINO's lines that end with a colon only say where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    while len(lines) > 1 and lines[0].startswith("Exception from ") and lines[0].endswith(":"):
        del lines[0]
    text = ""
    while lines and (not text or text.endswith(":")):
        text = f"{text} {lines.pop(0)}".strip()
    return (text or type(error).__name__)[:500]
