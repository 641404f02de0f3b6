"""Requests of one row each with their right answers, in a file that client programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}
"""Names of element types in the Open Inference Protocol."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, its tensors in the model's order, and what a right answer is."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    tolerance: float  # relative to an output's largest element; 0: equal bit for bit

    def is_answer(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether flat ``arrays``, in the order of the outputs, are right."""
        return len(arrays) == len(self.outputs) and all(
            self._is_close(given, right.ravel())
            for given, right in zip(arrays, self.outputs.values(), strict=True)
        )

    def _is_close(self, given: np.ndarray, right: np.ndarray) -> bool:
        if given.size != right.size:
            return False
        if not self.tolerance:
            return given.tobytes() == right.tobytes()
        error = np.abs(given - right).max()
        return bool(error <= self.tolerance * np.abs(right).max())  # false for NaN


def write_questions(path: Path, questions: Sequence[Question]) -> Path:
    arrays: dict[str, np.ndarray] = {}
    for number, question in enumerate(questions):
        arrays[f"{number}/tolerance"] = np.array(question.tolerance)
        arrays |= {f"{number}/input/{name}": value for name, value in question.inputs.items()}
        arrays |= {f"{number}/output/{name}": value for name, value in question.outputs.items()}
    np.savez(path, allow_pickle=False, **arrays)
    return path


def read_questions(path: Path) -> list[Question]:
    by_number: dict[int, Question] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            number, kind, *name = key.split("/", 2)
            if kind == "tolerance":
                by_number[int(number)] = Question({}, {}, float(arrays[key]))
            else:
                question = by_number[int(number)]
                part = question.inputs if kind == "input" else question.outputs
                part[name[0]] = arrays[key]
    return list(by_number.values())
