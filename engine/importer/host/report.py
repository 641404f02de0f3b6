"""The artefact folder as the front end reads it: report and graph, no torch.

<store>/artefacts/<sha256 of the upload>/         or <artefact_key(upload, ...)>/
    graph.json            the template; its operators are the schedule units
    weights.safetensors   its constants, by value name
    model.onnx            the upload, where ONNX Runtime ran it in the verification
    report.json           what is known of the model, and the checksums of the others
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, load_graph
from braid.core.json_form import MalformedJson, from_json, to_json
from braid.core.padding import PaddedAxis
from braid.core.regular_file import open_file, read_file
from braid.core.shortage import unreadable

REPORT_FORMAT = 1
GRAPH_FILE = "graph.json"
WEIGHTS_FILE = "weights.safetensors"
REPORT_FILE = "report.json"
MODEL_FILE = "model.onnx"
RAISED = "old onnx"
CONVERTED = ("pt2", RAISED)  # sources of artefacts whose model file the import made from the upload
MAX_MODEL_BYTES = (1 << 31) - 1  # of a converted model: the most that a protobuf message takes

UNSHOWN = (
    "an earlier version imported it and compared random rows only; delete the model and register "
    "the file again, so that requests can share batches"
)
_MAX_REPORT_BYTES = 16 << 20
_MAX_GRAPH_BYTES = 512 << 20
_MAX_HEADER_BYTES = 100_000_000  # of safetensors, by its library


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """Batch axes of a model that takes and gives one row for each row of a request.

    Inputs have it at dimension 0. An output whose axis is None does not depend on the batch:
    every request gets it whole. ``alone``: the model takes one row only, so rows of a request
    run one after the other.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int | None]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of the comparison with the reference: batch sizes and largest relative error."""

    reference: str  # "onnxruntime 1.23.0"
    batches: tuple[int, ...]
    max_relative_error: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class Report:
    """Facts that an import found out about a model, and checksums of its files."""

    sha256: str  # of the upload
    size_bytes: int  # of the upload
    source: str  # "onnx", or one of CONVERTED
    opset: int
    batch: BatchAxes | None  # None: served unbatched
    static_inputs: tuple[str, ...]  # inputs whose content decides shapes or branches
    example_shapes: Mapping[str, tuple[int, ...]]  # shapes the model was checked at, batch 1
    static_values: Mapping[str, Any]  # content of the static inputs in that check
    warnings: tuple[str, ...]
    verified: Verified
    files: Mapping[str, str] = field(default_factory=dict)  # file name -> SHA-256
    narrow_type: str = ""  # FP16 or BF16, if the file computes in it; its tolerance follows
    content: Mapping[str, Any] = field(default_factory=dict)  # of inputs, that the model takes
    samples: str = ""  # digest of those that the import was given
    padding: tuple[PaddedAxis, ...] = ()  # one for each open axis; (): not looked at
    batchable: bool = False  # the caller stated that rows do not influence each other
    metadata: Mapping[str, str] = field(default_factory=dict)  # that the file has of itself
    rows: str = ""  # operator that may let rows influence each other; "": the graph shows none


def report_from_json(document: Any) -> Report:
    """Raises ``InvalidArtefact`` for another format version or a missing field."""
    if not isinstance(document, dict) or document.get("format") != REPORT_FORMAT:
        raise InvalidArtefact(f"{REPORT_FILE} is not of format {REPORT_FORMAT}")
    body = {name: value for name, value in document.items() if name != "format"}
    if isinstance(batch := body.get("batch"), dict) and "rows" not in body:
        body["batch"], body["rows"] = {**batch, "alone": True}, UNSHOWN
    try:
        if "padding" not in body:
            raise MalformedJson("missing padding")
        return from_json(Report, body)
    except MalformedJson as error:
        raise InvalidArtefact(
            f"{REPORT_FILE} is malformed, or of an unreleased version of Braid that is too old "
            f"({error}); register the file again"
        ) from error


def report_to_json(report: Report) -> dict[str, Any]:
    return {"format": REPORT_FORMAT, **to_json(report)}


def read_report(artefact: Path) -> Report:
    """Raises ``InvalidArtefact`` if the file is missing, too large, changed or malformed."""
    try:
        document = json.loads(_read(artefact / REPORT_FILE, _MAX_REPORT_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidArtefact(f"{REPORT_FILE} is not JSON: {error}") from error
    if isinstance(document, dict) and document.pop("checksum", "") != _checksum(document):
        raise InvalidArtefact(f"{REPORT_FILE} was changed after the import")
    return report_from_json(document)


def read_graph(artefact: Path, report: Report) -> OpGraph:
    """Read ``graph.json``, verified by its checksum; may raise ``InvalidArtefact``."""
    data = _read(artefact / GRAPH_FILE, _MAX_GRAPH_BYTES)
    if hashlib.sha256(data).hexdigest() != report.files.get(GRAPH_FILE):
        raise InvalidArtefact(f"{GRAPH_FILE} was changed after the import")
    return load_graph(data.decode(errors="replace"))


def verify_files(artefact: Path, report: Report) -> None:
    """Check that the folder holds exactly what its report says; reads the weights once.

    Raises ``InvalidArtefact`` if a file is missing, of another kind, changed, or too many.
    """
    expected = {GRAPH_FILE, WEIGHTS_FILE}
    if report.source in CONVERTED or report.files.get(MODEL_FILE) == report.sha256:
        expected |= {MODEL_FILE} & set(report.files)
    entries = {e.name: e.is_file(follow_symlinks=False) for e in os.scandir(artefact)}
    if set(report.files) != expected or entries != dict.fromkeys([*expected, REPORT_FILE], True):
        raise InvalidArtefact(f"the artefact should hold {sorted(expected)}, not {sorted(entries)}")
    for name in expected:
        check_file(artefact, report, name)


def artefact_key(sha256: str, samples: str, *, batchable: bool = False) -> str:
    """Key of an artefact that samples (their digest, or "") or the caller's word have changed."""
    told = f"{sha256} {samples}{' batchable' if batchable else ''}"
    return hashlib.sha256(told.encode()).hexdigest()


def read_report_of(artefact: Path, key: str) -> Report:
    """As ``read_report``; also raises if the artefact is of another upload."""
    report = read_report(artefact)
    special = artefact_key(report.sha256, report.samples, batchable=report.batchable)
    if key != special and (report.batchable or key != report.sha256):
        raise InvalidArtefact(f"{REPORT_FILE} is of another upload")
    return report


def check_files(artefact: Path, key: str) -> None:
    """Check that the artefact with a key is as the import left it; reads all of it.

    Raises ``InvalidArtefact``, or ``SystemShortage`` if a file cannot be read for now.
    """
    report = read_report_of(artefact, key)
    for name in {GRAPH_FILE, *report.files}:
        check_file(artefact, report, name)


def check_file(artefact: Path, report: Report, name: str) -> None:
    """As ``check_files``, of one file."""
    try:
        with open_file(artefact / name) as file:
            has_its_size = os.fstat(file.fileno()).st_size == _size_bytes(report, name, file)
            is_unchanged = has_its_size and _digest_of(file) == report.files.get(name)
    except OSError as error:
        raise unreadable(name, error) from error
    if not is_unchanged:
        raise InvalidArtefact(f"{name} was changed after the import")


def _size_bytes(report: Report, name: str, file: BufferedReader) -> int:
    """Bytes that a file of an artefact should have; a sparse one could be read for days."""
    if name == MODEL_FILE and report.source not in CONVERTED:
        return report.size_bytes
    if name == MODEL_FILE:
        return min(os.fstat(file.fileno()).st_size, MAX_MODEL_BYTES)
    if name == WEIGHTS_FILE:
        return _safetensors_bytes(file)
    return min(os.fstat(file.fileno()).st_size, _MAX_GRAPH_BYTES)


def _safetensors_bytes(file: BufferedReader) -> int:
    """Size by the header: its own size, a JSON object, tensors; -1 without such a header."""
    file.seek(0)
    header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        return -1
    try:
        tensors = json.loads(file.read(header_bytes))
        tensors.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in tensors.values()]
        return 8 + header_bytes + int(max(ends, default=0))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return -1


def _digest_of(file: BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def report_text(report: Report) -> str:
    """Text of ``report.json``: the report, with a checksum of itself."""
    document = report_to_json(report)
    return json.dumps({**document, "checksum": _checksum(document)}, indent=1)


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    with open_file(path) as file:
        return _digest_of(file)


def _read(path: Path, most: int) -> bytes:
    try:
        return read_file(path, most)
    except OSError as error:
        raise unreadable(path.name, error) from error
