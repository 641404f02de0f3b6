"""The files of a network of the zoo, exported when they are missing, and kept in a folder.

    NAME.onnx   by torch's newer exporter, or by the older one where that fails; rows open, or one
    NAME.pt2    as torch.export saves it; only of networks in FP32
    NAME.npz    inputs of ``ROWS`` rows, floats in FP32
    NAME.json   how it was written, and what could not be

``python -m benchmarks.zoo.files NAME FOLDER`` exports one network in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.environment import REPOSITORY
from benchmarks.zoo.architectures import ARCHITECTURES
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.styles import STYLES

FP32 = "fp32"
TYPES: Mapping[str, torch.dtype] = {
    FP32: torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
}  # fmt: skip
ZOO: Mapping[str, Entry] = {**STYLES, **ARCHITECTURES}

ROWS = 8
TRACED_ROWS = 2
"""Rows to export with: with a single row an exporter takes a broadcast for a fixed extent."""

TOLERANCE = 2e-2
"""Error of an exported file in ONNX Runtime against torch, relative to an output's largest element.

Beyond it the exporter wrote another network, e.g. one that fits the traced rows only.
"""

LONGEST_S = 900.0


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


def feeds_of(onnx: Path, rows: int) -> dict[str, Tensor]:
    """Return inputs of the first rows for an exported file, floats in FP32."""
    with np.load(onnx.with_suffix(".npz")) as arrays:
        return {name: torch.from_numpy(arrays[name][:rows]) for name in arrays.files}


def cast(feeds: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return inputs with floats of another type."""
    return {
        name: given.to(dtype) if given.is_floating_point() else given
        for name, given in feeds.items()
    }


def exported(specimen: Specimen, folder: Path, transformers: Path | None) -> Exported:
    """Return the files of a specimen, exporting it if that was not tried before.

    Raises:
        NotExported: torch writes no file, or a package is missing.
    """
    facts = folder / f"{specimen.key}.json"
    if not facts.exists():
        command = [sys.executable, "-m", "benchmarks.zoo.files", specimen.name, str(folder)]
        command += ["--type", specimen.type]
        command += ["--transformers", str(transformers)] if transformers else []
        try:
            done = subprocess.run(
                command, cwd=REPOSITORY, capture_output=True, text=True, timeout=LONGEST_S
            )
        except subprocess.TimeoutExpired:
            raise NotExported(f"torch did not end within {LONGEST_S:.0f} s") from None
        if done.returncode:
            raise NotExported("".join(done.stderr.strip().splitlines()[-1:])[:300])
    said = json.loads(facts.read_text())
    onnx, pt2 = (folder / f"{specimen.key}.{ending}" for ending in ("onnx", "pt2"))
    if not said["how"]:
        raise NotExported("; ".join(f"{how}: {why}" for how, why in said["failures"].items()))
    return Exported(
        onnx, said["how"], said["rows"], pt2 if pt2.exists() else None, said["failures"]
    )


@dataclass(slots=True)
class _Facts:
    how: str = ""
    rows: int = 0
    failures: dict[str, str] = field(default_factory=dict)


def export(specimen: Specimen, folder: Path) -> None:
    """Write the files of a specimen; what could not be written is in its facts."""
    entry, dtype, facts = ZOO[specimen.name], TYPES[specimen.type], _Facts()
    torch.backends.mha.set_fastpath_enabled(False)  # one operator that no exporter writes
    module = entry.module().to(dtype)
    path = folder / specimen.key
    feeds = entry.inputs(module, ROWS)
    np.savez(path.with_suffix(".npz"), **{name: given.numpy() for name, given in feeds.items()})
    for rows in (0, 1):
        example = cast({name: given[: rows or TRACED_ROWS] for name, given in feeds.items()}, dtype)
        for how in _ways(module, example, rows, path, facts):
            facts.how, facts.rows = how, rows
            break
        if facts.how:
            break
    path.with_suffix(".json").write_text(json.dumps(asdict(facts), indent=1))


def _ways(
    module: nn.Module, example: Mapping[str, Tensor], rows: int, path: Path, facts: _Facts
) -> Iterator[str]:
    """Try the exporters one after the other; yields the names of those that wrote a right file."""
    onnx = path.with_suffix(".onnx")
    label = "one row" if rows else "open rows"
    for how, write in (("dynamo", _by_dynamo), ("TorchScript", _by_torchscript)):
        try:
            write(module, example, onnx, is_open=not rows)
            _check(module, onnx, rows)
        except Exception as error:  # torch has dozens of kinds
            onnx.unlink(missing_ok=True)
            facts.failures[f"{how}, {label}"] = _first_line(error)
        else:
            yield how


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


def _check(module: nn.Module, onnx: Path, rows: int) -> None:
    """Compare the file in ONNX Runtime with the module, at one row and at all if rows are open.

    Raises:
        ValueError: they differ.
    """
    if any(given.dtype == torch.bfloat16 for given in module.parameters()):
        return  # ONNX Runtime has no kernels for it on CPUs
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    for count in (rows,) if rows else (1, ROWS):
        feeds = cast(feeds_of(onnx, count), next(module.parameters()).dtype)
        outputs = module(**feeds)
        right = outputs if isinstance(outputs, tuple | list) else (outputs,)
        answers = session.run(None, {name: feeds[name].numpy() for name in names})
        for answer, tensor in zip(answers, right, strict=True):
            error = relative_error(answer, tensor.float().numpy())
            if not error <= TOLERANCE:
                raise ValueError(f"with {count} rows the file errs by {error:.2g}")


def relative_error(answer: NDArray[np.generic], right: NDArray[np.generic]) -> float:
    """Return the largest difference, relative to the largest element; infinite for other shapes."""
    if answer.shape != right.shape:
        return float("inf")
    if not right.size:
        return 0.0
    difference = np.abs(answer.astype(np.float64) - right.astype(np.float64)).max()
    return float(difference / max(float(np.abs(right.astype(np.float64)).max()), 1e-12))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.files")
    parser.add_argument("name", choices=ZOO)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--type", choices=TYPES, default=FP32)
    parser.add_argument("--transformers", type=Path, help="folder that has the package")
    options = parser.parse_args(arguments)
    if options.transformers:
        sys.path.append(str(options.transformers))
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    options.folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        export(Specimen(options.name, options.type), options.folder)


if __name__ == "__main__":
    main()
