"""The artefact folder with its tensors: written by the importer, loaded by the device worker.

The front end reads ``report`` instead, which needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import InvalidArtefact, ModelImportError
from core.graph import OpGraph, graph_to_json
from engine.importer.report import (
    GRAPH_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    Report,
    file_digest,
    read_graph,
    read_report,
    sync_folder,
)
from engine.ops.dtypes import spec_of

_RESERVED = "__metadata__"  # safetensors' own key


@dataclass(frozen=True, slots=True)
class Artefact:
    """An imported model."""

    graph: OpGraph  # the template
    weights: Mapping[str, Tensor]  # on the CPU, mapped from the file, not to be written to
    report: Report


def load_artefact(folder: Path) -> Artefact:
    """Read and check an artefact folder.

    Raises:
        InvalidArtefact: a file is missing, changed or malformed, or graph and weights differ.
    """
    report = read_report(folder)
    graph = read_graph(folder)
    path = folder / WEIGHTS_FILE
    try:
        if file_digest(path) != report.files.get(WEIGHTS_FILE):
            raise InvalidArtefact(f"{WEIGHTS_FILE} was changed after the import; import again")
        weights = load_file(path)
    except OSError as error:
        raise InvalidArtefact(f"{WEIGHTS_FILE} cannot be read: {error.strerror}") from error
    specs = {name: spec_of(tensor) for name, tensor in weights.items()}
    if specs != dict(graph.constants):
        raise InvalidArtefact(f"{WEIGHTS_FILE} does not hold the constants of {GRAPH_FILE}")
    return Artefact(graph, weights, report)


def write_artefact(
    folder: Path, graph: OpGraph, weights: Mapping[str, Tensor], report: Report
) -> None:
    """Write a new artefact folder and make sure it is on the disk.

    Args:
        folder: must not exist.
        graph: the template.
        weights: tensor of each of ``graph.constants``.
        report: its ``files`` are filled in.

    Raises:
        ModelImportError: a constant has a name that cannot be stored.
    """
    if _RESERVED in weights:
        raise ModelImportError(f"the model names a tensor {_RESERVED!r}; give it another name")
    folder.mkdir()
    own = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    save_file(own, folder / WEIGHTS_FILE)
    (folder / GRAPH_FILE).write_text(json.dumps(graph_to_json(graph), allow_nan=False))
    files = {name: file_digest(folder / name) for name in (GRAPH_FILE, WEIGHTS_FILE)}
    report = dataclasses.replace(report, files=files)
    (folder / REPORT_FILE).write_text(json.dumps(report.to_json(), indent=1))
    for name in (GRAPH_FILE, WEIGHTS_FILE, REPORT_FILE):
        _sync_file(folder / name)
    sync_folder(folder)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
