"""A tiny model with its questions, and folders of peers that run in the tests' environment."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.peers.hosting.contract import SERVERS
from benchmarks.peers.load.tensors import Question, write_questions
from tests.benchmarks.conftest import copied

FAKES = Path(__file__).parent / "fakes"
TINY = "doubling"


def doubling_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        TINY,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def questions() -> list[Question]:
    rows = np.random.default_rng(0).standard_normal((3, 1, 6), dtype=np.float32)
    return [Question({"x": row}, {"y": 2 * row}, tolerance=1e-6) for row in rows]


@pytest.fixture
def model_files(tmp_path: Path, questions: list[Question]) -> Path:
    """A folder with the model ``doubling`` and what it is asked."""
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(doubling_model(), folder / f"{TINY}.onnx")
    write_questions(folder / f"{TINY}.npz", questions)
    return folder


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    """The fakes and the thirty lines, without an environment of their own."""
    return copied(tmp_path / "servers", FAKES, SERVERS / "thirty_lines_ort")
