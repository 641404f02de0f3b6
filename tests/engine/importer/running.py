"""Imports as the server makes them: a real process on a real file; and those in this process."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import psutil
import torch
from numpy.typing import NDArray

from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.messages import OnProgress
from braid.engine.importer.host.request import Hints, ImportLimits, ImportRequest
from braid.engine.importer.sandbox.pipeline import Study, import_upload, study_batch
from braid.engine.importer.upload.batch_axis import without_batch_symbol
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.importer.upload.whole_model import as_one_unit
from braid.engine.importer.verification.example_inputs import Trials, find_example
from braid.engine.importer.verification.reference import ReferenceModel, open_reference
from braid.engine.importer.verification.verify import Subject
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.onnx.structure import multiplies_integers
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret, specialise, static_inputs

MEMORY = 1 << 30
"""Bytes that tensors of a study may take."""

Shapes = Mapping[str, tuple[int, ...]]


def _ignore(fraction: float, step: str) -> None:
    pass


async def imported(
    upload: bytes | onnx.ModelProto,
    folder: Path,
    limits: ImportLimits | None = None,
    on_progress: OnProgress = _ignore,
    example_shapes: Shapes | None = None,
    samples: Path | None = None,
    *,
    batchable: bool = False,
) -> Path:
    """The artefact folder; the upload lies beside it."""
    data = upload if isinstance(upload, bytes) else upload.SerializeToString()
    path = folder / "upload"
    path.write_bytes(data)
    artefact = folder / "artefact"
    limits = limits or ImportLimits()
    hints = Hints(example_shapes or {}, samples, batchable)
    await import_model(path, artefact, limits, on_progress, hints)
    return artefact


def import_here(
    upload: Path,
    artefact: Path,
    samples: Path | None = None,
    *,
    batchable: bool = False,
    shapes: Shapes = MappingProxyType({}),
) -> Path:
    """Make the artefact folder without a process, which loads torch for two seconds.

    For tests that are not about the process.
    """
    threads = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory() as folder:
            hints = Hints(shapes, samples, batchable)
            source = open_upload(upload, Path(folder), hints.shapes)
            request = ImportRequest(upload, artefact, ImportLimits(), hints)
            import_upload(source, request, _ignore)
    finally:
        torch.set_num_threads(threads)
    return artefact


def answers(
    model: onnx.ModelProto,
    inputs: Mapping[str, NDArray[Any]],
    folder: Path,
    shapes: Shapes = MappingProxyType({}),
    samples: Path | None = None,
) -> dict[str, NDArray[Any]]:
    (folder / "upload").write_bytes(model.SerializeToString())
    made = import_here(folder / "upload", folder / "artefact", samples, shapes=shapes)
    return computed(load_artefact(made), inputs)


def computed(artefact: Artefact, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
    specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
    statics = {name: tensors[name] for name in static_inputs(artefact.graph)}
    graph, constants = specialise(artefact.graph, artefact.weights, specs, statics)
    return {name: found.numpy() for name, found in interpret(graph, constants, tensors).items()}


def studied(
    made: onnx.ModelProto,
    folder: Path,
    reference: ReferenceModel | None = None,
    *,
    whole: bool = False,
    batchable: bool = False,
) -> Study:
    """How an import would serve a model, lowered or as one unit."""
    upload = folder / "upload"
    upload.write_bytes(made.SerializeToString())
    oracle = open_reference(upload, on_integers=multiplies_integers(made))
    if whole:
        template, weights, _ = as_one_unit(made, (), lambda: oracle, {})
    else:
        template, weights = run_passes(*lower(prepare(made)))
    plain = without_batch_symbol(template)
    example = find_example(Trials(plain, weights, oracle, MEMORY), {})
    subject = Subject(plain, weights, example, MEMORY, batchable=batchable)
    return study_batch(subject, reference or oracle)


def map_much_with_torch(folder: Path, size_bytes: int) -> Path:
    """A path for ``PYTHONPATH`` on which torch maps ``size_bytes`` twice: reserved, and of a file.

    As a CUDA build of torch does, whose libraries take 3 GiB of address space.
    """
    stand_in = folder / "large" / "torch" / "__init__.py"
    stand_in.parent.mkdir(parents=True)
    with (stand_in.parent / "library").open("wb") as library:
        library.truncate(size_bytes)
    stand_in.write_text(_LARGE_TORCH.format(size_bytes=size_bytes))
    return stand_in.parent.parent


_LARGE_TORCH = """
import mmap, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "library").open("rb") as library:
    read_only = mmap.mmap(library.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
reserved = mmap.mmap(-1, {size_bytes}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)
sys.path.remove(str(here.parent))
del sys.modules["torch"]
import torch
torch.mapped_by_stand_in = read_only, reserved
"""


def importers(parent: int | None = None) -> list[psutil.Process]:
    """Importer processes that this one, or ``parent``, has started."""
    found = []
    for process in psutil.Process(parent or os.getpid()).children(recursive=True):
        try:
            if "braid.engine.importer.sandbox" in process.cmdline():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def left_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "upload")
