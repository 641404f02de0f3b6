"""Models with open extents, how their extents are distributed, and requests of any shape.

A *shape* is a tuple: the rows of a request, then the extents of the model's open axes.
"""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.environment import REPOSITORY
from benchmarks.peers.load.tensors import Question
from tests.models.real import REAL_MODELS, text_image

Arrays = dict[str, NDArray[np.generic]]
Shape = tuple[int, ...]

LOG_NORMAL, UNIFORM = "log-normal", "uniform"
DISTRIBUTIONS = (LOG_NORMAL, UNIFORM)
SPREAD = 0.7
"""Standard deviation of the logarithm of log-normal extents."""

MANY_ROWS = 8
"""Rows of requests, at most, where the open axes have too few extents."""

TOLERANCE = 1e-3
"""Error of an answer relative to the output's largest element."""


class ModelMissing(Exception):
    """The file of a model cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Extents of an open axis."""

    least: int
    most: int
    usual: int  # median of the log-normal ones
    step: int = 1

    @property
    def extents(self) -> range:
        return range(self.least, self.most + 1, self.step)

    def draw(self, distribution: str, rng: np.random.Generator) -> int:
        if distribution == UNIFORM:
            return int(rng.choice(self.extents))
        steps = round((rng.lognormal(math.log(self.usual), SPREAD) - self.least) / self.step)
        return self.extents[min(max(steps, 0), len(self.extents) - 1)]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with a first axis of rows, and other open axes."""

    name: str
    axes: tuple[Axis, ...]
    inputs: Callable[[Shape, np.random.Generator], Arrays]
    shipped: str = ""  # the name in REAL_MODELS; "": ``benchmarks.shapes.encoders`` writes the file

    def drawn(self, distribution: str, count: int, seed: int) -> list[Shape]:
        """Shapes of one row as they come: some again and again."""
        rng = np.random.default_rng(seed)
        return [(1, *(axis.draw(distribution, rng) for axis in self.axes)) for _ in range(count)]

    def new(self, count: int, seed: int) -> list[Shape]:
        """Different shapes of one row, as many as there are at most, from all extents."""
        every = math.prod(len(axis.extents) for axis in self.axes)
        rng = np.random.default_rng(seed)
        places = rng.choice(every, min(count, every), replace=False)
        return [(1, *self._extents_at(int(place))) for place in places]

    def cheapest(self, count: int, seed: int) -> list[Shape]:
        """Different shapes with the fewest elements, in random order.

        They have several rows where the open axes have fewer than ``count`` extents.
        """
        every = math.prod(len(axis.extents) for axis in self.axes)
        rows = 1 if every >= count else max(MANY_ROWS, -(-count // every))
        ranges = (range(1, rows + 1), *(axis.extents for axis in self.axes))
        ordered = sorted(itertools.product(*ranges), key=math.prod)[:count]
        random.Random(seed).shuffle(ordered)
        return ordered

    def _extents_at(self, place: int) -> Shape:
        extents = []
        for axis in self.axes:
            place, at = divmod(place, len(axis.extents))
            extents.append(axis.extents[at])
        return tuple(extents)


def _text(vocabulary: int) -> Callable[[Shape, np.random.Generator], Arrays]:
    def inputs(shape: Shape, rng: np.random.Generator) -> Arrays:
        ids = rng.integers(5, vocabulary, shape, dtype=np.int64)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    return inputs


def _image(shape: Shape, rng: np.random.Generator) -> Arrays:
    rows, height, width = shape
    return {"pixel_values": rng.standard_normal((rows, 3, height, width), dtype=np.float32)}


def _page(shape: Shape, rng: np.random.Generator) -> Arrays:
    rows, height, width = shape
    return {"x": text_image(rows, height, width)}


def _line(shape: Shape, rng: np.random.Generator) -> Arrays:
    rows, width = shape
    return {"x": text_image(rows, 48, width)}


_LENGTH = Axis(1, 512, usual=60)
_SIDE = Axis(32, 512, usual=160)
_PAGE_SIDE = Axis(160, 640, usual=320, step=32)
CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("bert_base", (_LENGTH,), _text(30522)),
        Case("minilm", (_LENGTH,), _text(30522)),
        Case("resnet18", (_SIDE, _SIDE), _image),
        Case("ppocr4_det", (_PAGE_SIDE, _PAGE_SIDE), _page, shipped="ppocr4_det"),
        Case("ppocr4_rec", (Axis(32, 960, usual=240),), _line, shipped="ppocr4_rec"),
        Case("tiny", (Axis(1, 64, usual=12),), _text(100)),
    )
}
USUAL = ("bert_base", "minilm", "resnet18", "ppocr4_det", "ppocr4_rec")


def model_file(case: Case, folder: Path, transformers: Path | None) -> Path:
    """The ONNX file of a case, in ``folder`` or where a package ships it; written if it is missing.

    Args:
        case: whose file.
        folder: of the files that were written.
        transformers: folder with that package, if it is not in this environment.

    Raises:
        ModelMissing: a package is not installed, or the model was not exported.
    """
    if case.shipped:
        shipped = REAL_MODELS[case.shipped]
        if shipped.path is None:
            raise ModelMissing(f"package {shipped.package} is not installed")
        return shipped.path
    file = folder / f"{case.name}.onnx"
    if not file.exists():
        command = [sys.executable, "-m", "benchmarks.shapes.encoders", case.name, str(file)]
        if transformers is not None:
            command += ["--transformers", str(transformers)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise ModelMissing("".join(last) or f"exit status {done.returncode}")
    return file


class Oracle:
    """ONNX Runtime on one request alone."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(file, options)
        self._names = [output.name for output in self._session.get_outputs()]

    def question(self, inputs: Arrays) -> Question:
        outputs = self._session.run(self._names, inputs)
        return Question(inputs, dict(zip(self._names, outputs, strict=True)), TOLERANCE)
