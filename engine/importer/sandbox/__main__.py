"""The importer process: imports one upload.

    rights given up ─> request ─> folder ─> limits ─> file ─> import

Its libraries were loaded before it was forked. No byte of the file is read before the process is
confined to its folder, with one thread until then, and its limits are set; the limit of memory
counts what the import takes and not how much address space a build of torch needs. Request and
reports pass through one socket; what libraries print goes to standard output, which the server
keeps the end of.
"""

import argparse
import errno
import json
import os
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

from braid.core.disk import disk_failure
from braid.core.errors import BraidError, InvalidRequest, ModelImportError
from braid.core.json_form import from_json
from braid.engine.importer.host.messages import Done, Failed, Message, OnProgress, Progress, encode
from braid.engine.importer.host.request import ImportLimits, ImportRequest, limit_exceeded
from braid.engine.importer.sandbox.confinement import give_up_rights, set_limits
from braid.engine.importer.sandbox.landlock import keep_to
from braid.engine.importer.sandbox.pipeline import import_upload
from braid.engine.importer.sandbox.run_limit import bound_trials
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.runtime.memory import is_out_of_memory


def main() -> None:
    parser = argparse.ArgumentParser(prog="braid.engine.importer.sandbox")
    parser.add_argument("--link-fd", type=int, required=True)
    link: int = parser.parse_args().link_fd
    give_up_rights()
    request = _receive(link)
    keep_to(request.artefact.parent, filter(None, [request.upload, request.hints.samples]))
    try:
        _import(request, lambda fraction, step: _send(link, Progress(fraction, step)))
    except Exception as error:
        traceback.print_exc()  # for the server's log
        full = disk_failure(error, request.artefact.parent, by_text=True)
        _send(link, Failed(full or _as_import_error(error, request.limits)))
        os._exit(1)
    _send(link, Done())
    os._exit(0)  # the libraries' threads and destructors have nothing left to do


def _receive(link: int) -> ImportRequest:
    """Wait for the request, and work in its folder; ends the process if none will come."""
    with open(link, "rb", closefd=False) as requests:
        line = requests.readline()
    if not line:
        os._exit(0)
    request = from_json(ImportRequest, json.loads(line))
    work = request.artefact.parent
    os.chdir(work)
    os.environ["HOME"] = os.environ["TMPDIR"] = str(work)
    tempfile.tempdir = None
    return replace(request, upload=_linked(request.upload, work / "upload"))


def _linked(upload: Path, name: Path) -> Path:
    """A link that the artefact can link once more; ``upload`` on file systems without links."""
    try:
        os.link(upload, name)
    except OSError:
        return upload
    return name


def _import(request: ImportRequest, on_progress: OnProgress) -> None:
    on_progress(0.0, "reading the model")
    set_limits(request.limits)
    bound_trials(request.limits.run_seconds, request.upload.stat().st_size)
    source = open_upload(request.upload, request.artefact.parent, request.hints.shapes)
    import_upload(source, request, on_progress)


def _as_import_error(error: Exception, limits: ImportLimits) -> ModelImportError:
    """Return an error whose message the caller may read for any error that ended the import."""
    if is_out_of_memory(error):  # first: also if it was taken for a fault of the model
        return limit_exceeded("memory_bytes", limits, "it ran out of memory (bytes)")
    if isinstance(error, ModelImportError):
        return error
    if _file_too_large(error):
        return limit_exceeded("file_bytes", limits, "a file grew too large (bytes)")
    if isinstance(error, BraidError | InvalidRequest):
        return ModelImportError(str(error))
    return ModelImportError(
        f"the importer failed on this model ({type(error).__name__}); this is a bug or a damaged "
        "file, the server log has the details"
    )


def _file_too_large(error: Exception) -> bool:
    code = f"os error {errno.EFBIG}"
    return code in str(error) or (isinstance(error, OSError) and error.errno == errno.EFBIG)


def _send(link: int, message: Message) -> None:
    line = encode(message)
    while line:
        line = line[os.write(link, line) :]


if __name__ == "__main__":
    main()
