"""The files of a network of the zoo, exported when they are missing, and kept in a folder.

    NAME.onnx   by torch's newer exporter, or by the older one where that fails; rows open, or one
    NAME.pt2    as torch.export saves it; only of networks in FP32
    NAME.npz    inputs of ``ROWS`` rows, floats in FP32
    NAME.json   how it was written, and what could not be

``python -m benchmarks.zoo.files FOLDER NAME:TYPE ...`` exports networks in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks.environment import REPOSITORY
from benchmarks.zoo.architectures import ARCHITECTURES
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.feeds import FP32, feeds_of, relative_error
from benchmarks.zoo.styles import STYLES
from braid.engine.ops.dtypes import tensor_of

_TORCH_TYPES = {FP32: torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ZOO: Mapping[str, Entry] = {**STYLES, **ARCHITECTURES}

ROWS = 8
TRACED_ROWS = 2
"""Rows to export with: with a single row an exporter takes a broadcast for a fixed extent."""

TOLERANCE = 2e-2
"""Error of an exported file in ONNX Runtime against torch, relative to an output's largest element.

Beyond it the exporter wrote another network, e.g. one that fits the traced rows only.
"""

WAY_S, LONGEST_S = 240.0, 900.0
"""Seconds of one way to export a network, and of all ways."""


class NotExported(Exception):
    """There is no file of a network; the message says why."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """A network of the zoo in one type of numbers."""

    name: str
    type: str = FP32

    @property
    def key(self) -> str:
        return self.name if self.type == FP32 else f"{self.name}_{self.type}"

    @property
    def family(self) -> str:
        return ZOO[self.name].family


@dataclass(frozen=True, slots=True)
class Exported:
    """Files of a specimen, and how they came about."""

    onnx: Path
    how: str  # exporter that wrote it
    rows: int  # it takes; 0: any number
    pt2: Path | None = None
    failures: Mapping[str, str] = field(default_factory=dict)  # way to export -> why it failed


def export_missing(specimens: Sequence[Specimen], folder: Path, transformers: Path | None) -> None:
    """Export what was not tried before, in one process for all.

    Those that it fails at are left to ``exported``, which tries each by itself.
    """
    missing = [one for one in specimens if not (folder / f"{one.key}.json").exists()]
    if len(missing) > 1:
        _run(missing, folder, transformers, timeout_s=LONGEST_S * len(missing))


def exported(specimen: Specimen, folder: Path, transformers: Path | None) -> Exported:
    """Return the files of a specimen, exporting it if that was not tried before.

    Raises:
        NotExported: torch writes no file, or a package is missing.
    """
    facts = folder / f"{specimen.key}.json"
    if not facts.exists() and (why := _run([specimen], folder, transformers, LONGEST_S)):
        raise NotExported(why)
    said = json.loads(facts.read_text())
    onnx, pt2 = (folder / f"{specimen.key}.{ending}" for ending in ("onnx", "pt2"))
    if not said["how"]:
        raise NotExported("; ".join(f"{how}: {why}" for how, why in said["failures"].items()))
    form = pt2 if pt2.exists() else None
    return Exported(onnx, said["how"], said["rows"], form, said["failures"])


def _run(
    specimens: Sequence[Specimen], folder: Path, transformers: Path | None, timeout_s: float
) -> str:
    """Export in a process of its own; returns why it failed, or ""."""
    keys = [f"{one.name}:{one.type}" for one in specimens]
    command = [sys.executable, "-m", "benchmarks.zoo.files", str(folder), *keys]
    command += ["--transformers", str(transformers)] if transformers else []
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"torch did not end within {timeout_s:.0f} s"
    last = "".join(done.stderr.strip().splitlines()[-1:])[:300]
    return (last or f"exit status {done.returncode}") if done.returncode else ""


@dataclass(slots=True)
class _Facts:
    how: str = ""
    rows: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def export(specimen: Specimen, folder: Path) -> None:
    """Write the files of a specimen; what could not be written is in its facts."""
    entry, path, facts = ZOO[specimen.name], folder / specimen.key, _Facts()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator that no exporter writes
    module, onnx = entry.module().to(_TORCH_TYPES[specimen.type]), path.with_suffix(".onnx")
    feeds = entry.inputs(module, ROWS)
    arrays = {name: given.numpy() for name, given in feeds.items()}
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)
    ways = itertools.product((0, 1), (("dynamo", _by_dynamo), ("TorchScript", _by_torchscript)))
    for rows, (how, write) in ways:
        example = _tensors(onnx, rows or TRACED_ROWS, specimen.type)
        try:
            with _limited(WAY_S):
                write(module, example, onnx, is_open=not rows)
                _check(module, onnx, rows, specimen.type)
        except Exception as error:  # torch has dozens of kinds
            onnx.unlink(missing_ok=True)
            where = "one row" if rows else "open rows"
            facts.failures[f"{how}, {where}"] = _first_line(error)
        else:
            facts.how, facts.rows = how, rows
            break
    path.with_suffix(".json").write_text(json.dumps(asdict(facts), indent=1))


def _tensors(onnx: Path, rows: int, type_: str) -> dict[str, Tensor]:
    return {name: tensor_of(array) for name, array in feeds_of(onnx, rows, type_).items()}


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block once it takes longer than that."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {seconds:.0f} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _by_dynamo(
    module: nn.Module, example: Mapping[str, Tensor], onnx: Path, *, is_open: bool
) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {name: {0: batch} for name in example} if is_open else None
    program = torch.export.export(module, (), dict(example), dynamic_shapes=shapes, strict=False)
    if all(given.dtype not in (torch.float16, torch.bfloat16) for given in module.parameters()):
        torch.export.save(program, onnx.with_suffix(".pt2"))
    written = torch.onnx.export(program, dynamo=True, verbose=False)
    assert written is not None
    written.save(str(onnx), external_data=False)


def _by_torchscript(
    module: nn.Module, example: Mapping[str, Tensor], onnx: Path, *, is_open: bool
) -> None:
    outputs = module(**example)
    count = len(outputs) if isinstance(outputs, tuple | list) else 1
    called = [f"y{number}" for number in range(count)]
    open_axes = {name: {0: "batch"} for name in (*example, *called)} if is_open else None
    torch.onnx.export(
        module,
        tuple(example.values()),
        str(onnx),
        dynamo=False,
        opset_version=17,
        input_names=list(example),
        output_names=called,
        dynamic_axes=open_axes,
    )


def _check(module: nn.Module, onnx: Path, rows: int, type_: str) -> None:
    """Compare the file in ONNX Runtime with the module, at one row and at all if rows are open.

    Raises:
        ValueError: they differ.
    """
    if type_ == "bf16":
        return  # ONNX Runtime has no kernels for it on CPUs
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    for count in (rows,) if rows else (1, ROWS):
        feeds = _tensors(onnx, count, type_)
        outputs = module(**feeds)
        right = outputs if isinstance(outputs, tuple | list) else (outputs,)
        answers = session.run(None, {name: feeds[name].numpy() for name in names})
        for answer, tensor in zip(answers, right, strict=True):
            error = relative_error(answer, tensor.float().numpy())
            if not error <= TOLERANCE:
                raise ValueError(f"with {count} rows the file errs by {error:.2g}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.files")
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="+", metavar="NAME:TYPE")
    parser.add_argument("--transformers", type=Path, help="folder that has the package")
    options = parser.parse_args(arguments)
    if options.transformers:
        sys.path.append(str(options.transformers))
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    options.folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    with torch.no_grad():
        for network in options.networks:
            try:
                export(Specimen(*network.split(":")), options.folder)
            except Exception as error:  # of a package that is missing, or of an architecture
                failures += 1
                print(_first_line(error), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
