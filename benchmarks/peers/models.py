"""Models of the comparison: files, requests of one row, and ONNX Runtime's answers to those."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.networks import NETWORKS
from benchmarks.networks.export import export_onnx
from benchmarks.networks.one_operator import write_scaled
from benchmarks.networks.registry import arrays_of
from benchmarks.peers.load.tensors import Question, write_questions

IDENTITY = "identity"
NAMES = (IDENTITY, "squeezenet", "mnasnet", "googlenet", "resnet50", "bert_base")
QUESTIONS = 4
"""Different requests of a model, so that answers given to the wrong caller are seen."""
TOLERANCE = 1e-3
"""Largest error of an answer relative to the output's largest element."""
_SHAPE = (3, 224, 224)


@dataclass(frozen=True, slots=True)
class Model:
    """A model and what it is asked."""

    name: str
    file: Path
    questions: Path


def prepare(name: str, folder: Path) -> Model:
    """Write the model named ``name`` and its questions to ``folder``, unless they are there.

    Raises:
        KeyError: neither ``identity`` nor a network has this name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, questions = folder / f"{name}.onnx", folder / f"{name}.npz"
    if not file.exists():
        write_scaled(file, _SHAPE) if name == IDENTITY else export_onnx(name, file)
    if not questions.exists():
        tolerance = 0.0 if name == IDENTITY else TOLERANCE
        write_questions(questions, [_question(name, file, n, tolerance) for n in range(QUESTIONS)])
    return Model(name, file, questions)


def _question(name: str, file: Path, seed: int, tolerance: float) -> Question:
    if name == IDENTITY:
        x = np.random.default_rng(seed).standard_normal((1, *_SHAPE), dtype=np.float32)
        return Question({"x": x}, {"y": x}, tolerance)
    network = NETWORKS[name]
    inputs = arrays_of(network, seed=seed)
    session = onnxruntime.InferenceSession(file)
    outputs = session.run(list(network.output_names), inputs)
    return Question(inputs, dict(zip(network.output_names, outputs, strict=True)), tolerance)
