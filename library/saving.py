"""Compiled networks as folders: artefact, schedules, and what they were compiled for.

FOLDER/network.json    name, options, digest, schedules with their graphs
FOLDER/artefact/       graph and weights, as in the store of a server
"""

import json
import os
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from braid.compiler.imported_model import read_imported
from braid.compiler.options import options_from_json
from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph, graph_from_json, graph_to_json
from braid.core.regular_file import read_file
from braid.core.schedule import Schedule, schedule_from_json, schedule_to_json
from braid.engine.importer.host.report import check_files
from braid.engine.link.options import WorkerOptions
from braid.library.compiled import Compiled
from braid.library.device_thread import DEVICE_THREADS
from braid.library.network import Network
from braid.server.device_names import parse_device
from braid.server.devices.worker_options import worker_options
from braid.server.settings import load_settings

FORMAT = 1
FILE, ARTEFACT = "network.json", "artefact"
MAX_FILE_BYTES = 1 << 30


def save(name: str, compiled: Compiled, folder: Path) -> None:
    """Write a network to ``folder``, which must not exist and appears whole or not at all."""
    if folder.exists():
        raise FileExistsError(f"{folder} exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".braid-") as parent:
        written = Path(parent) / "network"
        written.mkdir()
        shutil.copytree(compiled.imported.artefact, written / ARTEFACT)
        (written / FILE).write_text(json.dumps(_document(name, compiled)))
        os.rename(written, folder)


def _document(name: str, compiled: Compiled) -> dict[str, Any]:
    imported = compiled.imported
    return {
        "format": FORMAT,
        "name": name,
        "sha256": imported.digest,
        "size_bytes": imported.report.size_bytes,
        "cores": list(compiled.options.cores),
        **_shape_document(compiled),
        "lengths": [_shape_document(one) for one in compiled.lengths],
    }


def _shape_document(compiled: Compiled) -> dict[str, Any]:
    return {
        "options": compiled.imported.options.to_json(),
        "schedules": [
            {"schedule": schedule_to_json(schedule), "graph": graph_to_json(compiled.graphs[size])}
            for size, schedule in sorted(compiled.schedules.items())
        ],
        "remarks": list(compiled.remarks),
    }


def load(folder: str | os.PathLike[str], *, device: str = "cpu") -> Network:
    """Read a network that ``Network.save`` wrote, ready to run; nothing is measured.

    Plans are for the device that they were measured on: on another one the network runs
    sequentially, with a warning.

    Raises:
        InvalidArtefact: a file is missing, changed, or of another version.
        OSError: the folder cannot be read.
    """
    place = Path(folder)
    try:
        document = json.loads(read_file(place / FILE, MAX_FILE_BYTES))
    except ValueError as error:
        raise InvalidArtefact(f"{place / FILE} is no JSON: {error}") from error
    options = worker_options(load_settings({"devices": device}), parse_device(device))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArtefact(f"{place / FILE} is not of format {FORMAT}")
    try:
        compiled = _compiled(document, place / ARTEFACT, options)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArtefact(f"{place / FILE} is malformed: {error!r}") from error
    return Network(str(document["name"]), compiled)


def _compiled(document: dict[str, Any], artefact: Path, options: WorkerOptions) -> Compiled:
    digest, key = str(document["sha256"]), device_key_of(options)
    check_files(artefact, digest)
    entries, others = [document, *document.get("lengths", ())], set[str]()
    imported = read_imported(digest, options_from_json(document["options"]), artefact)
    shapes = []
    for entry in entries:
        at_shape = replace(imported, options=options_from_json(entry["options"]))
        fits, graphs, other = _schedules(entry["schedules"], key)
        shapes.append(Compiled(at_shape, fits, graphs, options, tuple(entry["remarks"])))
        others |= other
    if others:
        warnings.warn(
            f"{document['name']} was compiled for {others.pop()}, this is {key}: it runs "
            "sequentially here; compile it again",
            stacklevel=3,
        )
    return replace(shapes[0], lengths=tuple(shapes[1:]))


def _schedules(
    entries: list[dict[str, Any]], key: str
) -> tuple[dict[int, Schedule], dict[int, OpGraph], set[str]]:
    """Schedules for a device with their graphs, and the keys of devices of other ones."""
    read = [
        (schedule_from_json(entry["schedule"]), graph_from_json(entry["graph"]))
        for entry in entries
    ]
    fits, graphs = {}, {}
    for schedule, graph in read:
        if tuple(operator.name for operator in graph.operators) != schedule.unit_names:
            raise InvalidArtefact("a schedule names other units than its graph")
        if schedule.key.device_key == key:
            fits[schedule.key.batch_size] = schedule
            graphs[schedule.key.batch_size] = graph
    return fits, graphs, {schedule.key.device_key for schedule, _ in read} - {key}


def device_key_of(options: WorkerOptions) -> str:
    """Device key of a CPU device, as its worker gives it."""
    user = object()
    thread = DEVICE_THREADS.use(options, user)
    try:
        return thread.call(thread.backend.device_key)
    finally:
        DEVICE_THREADS.leave(user)
