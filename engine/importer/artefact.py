"""The artefact folder with its tensors: written by the importer, loaded by the device worker.

The front end reads ``report`` instead, which needs no torch.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from braid.core.disk import sync
from braid.core.errors import InvalidArtefact, ModelImportError
from braid.core.graph import OpGraph, graph_to_json
from braid.core.shortage import unreadable
from braid.engine.importer.host.report import (
    GRAPH_FILE,
    MODEL_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    Report,
    check_file,
    file_digest,
    read_graph,
    read_report,
    report_text,
)
from braid.engine.ops.dtypes import separated, spec_of

_RESERVED = "__metadata__"  # safetensors' own key


@dataclass(frozen=True, slots=True)
class Artefact:
    """An imported model: its template, weights and report."""

    graph: OpGraph  # the template
    weights: Mapping[str, Tensor]  # on the CPU, mapped from the file, not to be written to
    report: Report


def load_artefact(folder: Path) -> Artefact:
    """Read and check an artefact folder.

    Raises ``InvalidArtefact``, or ``SystemShortage`` if a file cannot be read for now.
    """
    report = read_report(folder)
    graph = read_graph(folder, report)
    path = folder / WEIGHTS_FILE
    check_file(folder, report, WEIGHTS_FILE)
    try:
        weights = load_file(path)
    except OSError as error:
        raise unreadable(WEIGHTS_FILE, error) from error
    specs = {name: spec_of(tensor) for name, tensor in weights.items()}
    if specs != dict(graph.constants):
        raise InvalidArtefact(f"{WEIGHTS_FILE} does not hold the constants of {GRAPH_FILE}")
    return Artefact(graph, weights, report)


def write_artefact(
    folder: Path,
    graph: OpGraph,
    weights: Mapping[str, Tensor],
    report: Report,
    model: Path | None = None,
) -> None:
    """Write a new artefact folder and make sure it is on the disk.

    ``report.files`` are filled in; ``model`` is the upload, to keep for ONNX Runtime. Raises
    ``ModelImportError`` if a constant has a name that cannot be stored.
    """
    if _RESERVED in weights:
        raise ModelImportError(f"the model names a tensor {_RESERVED!r}; give it another name")
    folder.mkdir()
    save_file(separated(dict(weights), weights), folder / WEIGHTS_FILE)
    (folder / GRAPH_FILE).write_text(json.dumps(graph_to_json(graph), allow_nan=False))
    names = [GRAPH_FILE, WEIGHTS_FILE]
    if model is not None:
        _keep(model, folder / MODEL_FILE)
        names.append(MODEL_FILE)
    report = dataclasses.replace(report, files={n: file_digest(folder / n) for n in names})
    (folder / REPORT_FILE).write_text(report_text(report))
    for name in (*names, REPORT_FILE):
        sync(folder / name)
    sync(folder)


def _keep(file: Path, kept: Path) -> None:
    """Link ``file`` as ``kept``, or copy it where the file system has no links."""
    try:
        os.link(file, kept)
    except OSError:
        shutil.copyfile(file, kept)
