"""The importer process: ``-m braid.engine.importer.sandbox --report-fd=N --parent=PID REQUEST``.

Confines itself first and loads libraries only then, so that the limits hold for them too; torch,
which takes longest, after the file has proved to be a model. Reports go to the pipe; what libraries
print goes to standard output, which the server keeps the end of.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import traceback

from braid.core.disk import disk_failure
from braid.core.errors import BraidError, InvalidRequest, ModelImportError
from braid.core.json_form import from_json
from braid.engine.importer.host.limits import ImportLimits, limit_exceeded
from braid.engine.importer.host.messages import Done, Failed, Message, OnProgress, Progress, encode
from braid.engine.importer.host.request import ImportRequest
from braid.engine.importer.sandbox.confinement import confine
from braid.engine.importer.sandbox.run_limit import bound_trials
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.runtime.out_of_memory import is_out_of_memory


def main() -> None:
    """Import one upload as the request says and report the outcome."""
    parser = argparse.ArgumentParser(prog="braid.engine.importer.sandbox")
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("request", type=json.loads)
    arguments = parser.parse_args()
    request = from_json(ImportRequest, arguments.request)
    reports: int = arguments.report_fd
    confine(request.limits, arguments.parent)
    try:
        _import(request, lambda fraction, step: _send(reports, Progress(fraction, step)))
    except Exception as error:
        traceback.print_exc()  # for the server's log
        full = disk_failure(error, request.artefact.parent, by_text=True)
        _send(reports, Failed(full or _as_import_error(error, request.limits)))
        os._exit(1)
    _send(reports, Done())
    os._exit(0)  # the libraries' threads and destructors have nothing left to do


def _import(request: ImportRequest, on_progress: OnProgress) -> None:
    on_progress(0.0, "reading the model")
    bound_trials(request.limits.run_seconds, request.upload.stat().st_size)
    source = open_upload(request.upload, request.artefact.parent)
    from braid.engine.importer.sandbox.pipeline import import_upload  # loads torch, onnxruntime

    import_upload(source, request, on_progress)


def _as_import_error(error: Exception, limits: ImportLimits) -> ModelImportError:
    """Return an error whose message the caller may read for any error that ended the import."""
    if isinstance(error, ModelImportError):
        return error
    if is_out_of_memory(error):
        return limit_exceeded("memory_bytes", limits, "it ran out of memory (bytes)")
    if _file_too_large(error):
        return limit_exceeded("file_bytes", limits, "a file grew too large (bytes)")
    if isinstance(error, BraidError | InvalidRequest):
        return ModelImportError(str(error))
    return ModelImportError(
        f"the importer failed on this model ({type(error).__name__}); this is a bug or a damaged "
        "file, the server log has the details"
    )


def _file_too_large(error: Exception) -> bool:
    """True for EFBIG: as an ``OSError``, or in the text of an error of safetensors."""
    code = f"os error {errno.EFBIG}"
    return code in str(error) or (isinstance(error, OSError) and error.errno == errno.EFBIG)


def _send(descriptor: int, message: Message) -> None:
    line = encode(message)
    while line:
        line = line[os.write(descriptor, line) :]


if __name__ == "__main__":
    main()
