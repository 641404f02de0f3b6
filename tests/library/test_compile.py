"""What compiling for a caller's own process gives, at every extent."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
import torch

import braid
from braid.core.errors import InvalidRequest, InvalidTensor, ModelImportError
from tests.engine.importer.test_tried_samples import table
from tests.library.conftest import import_ahead
from tests.models.extents import CASES, REFUSED, Case
from tests.models.strings import greeting, labels


class Scores(torch.nn.Module):
    """A module with a part that behaves otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(6, 8)
        self.dropout = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.relu(self.hidden(features))
        scores: torch.Tensor = self.last(self.dropout(hidden))
        return scores


@pytest.mark.ci
def test_a_module_computes_what_it_does_in_evaluation_mode(store: Path) -> None:
    torch.manual_seed(0)
    module, x = Scores(), torch.randn(5, 6)

    with braid.compile(
        module, torch.zeros(1, 6), batch_sizes=[1, 2], planner="sequential", store=store
    ) as net:
        found = net(x)

    assert isinstance(found, torch.Tensor)
    assert module.training
    with torch.no_grad():
        torch.testing.assert_close(found, module.eval()(x))
    assert list(net.inputs) == ["features"]


@pytest.mark.ci
def test_a_precision_is_chosen_by_errors_on_samples(model: Path, store: Path) -> None:
    rows = torch.randn(6, 3, 16, 16)
    compiled = partial(
        braid.compile, model, batch_sizes=[1], precision="auto", planner="sequential", store=store
    )

    with compiled(samples={"x": rows.numpy()}, accept_error=1e-6) as net:
        document = net.schedule.document
        assert (document.precision, document.provenance.samples) == ("fp32", 6)
        assert net(rows).shape == (6, 4, 16, 16)
    with pytest.raises(InvalidRequest, match="give one array for each of the model's inputs"):
        compiled(samples={"image": rows.numpy()})


@pytest.mark.ci
def test_samples_are_tried_though_the_file_was_compiled_without(
    tmp_path: Path, store: Path
) -> None:
    made, samples = table()
    (tmp_path / "table.onnx").write_bytes(made.SerializeToString())
    compiled = partial(
        braid.compile, tmp_path / "table.onnx", planner="sequential", batch_sizes=[1], store=store
    )

    with compiled() as net:
        assert not net.schedules
    with compiled(samples=samples) as net:
        assert net.schedules[1].document.provenance.samples == 6
        answer = net(samples["ids"])

    (expected,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, dict(samples))
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


def test_arguments_are_checked_before_anything_starts(model: Path, store: Path) -> None:
    with pytest.raises(FileNotFoundError):
        braid.compile("absent.onnx", store=store)
    with pytest.raises(InvalidRequest, match="no precision 'fp8'"):
        braid.compile(model, precision="fp8", store=store)
    with pytest.raises(InvalidRequest, match="cpu devices only"):
        braid.compile(model, device="cuda:0", store=store)
    with pytest.raises(InvalidRequest, match="example_inputs"):
        braid.compile(Scores(), store=store)
    with pytest.raises(InvalidRequest, match="example_inputs are for torch modules"):
        braid.compile(model, torch.zeros(1), store=store)
    with pytest.raises(InvalidRequest, match=r"samples\['x'\].*give numbers"):
        braid.compile(model, samples={"x": np.array([object()])}, store=store)
    with pytest.raises(InvalidRequest, match="the file of samples is empty"):
        braid.compile(model, samples=b"", store=store)


def test_a_file_that_is_no_model_leaves_no_process_behind(tmp_path: Path, store: Path) -> None:
    (tmp_path / "wrong.onnx").write_bytes(b"no model")
    before = set(psutil.Process().children(recursive=True))

    with pytest.raises(ModelImportError):
        braid.compile(tmp_path / "wrong.onnx", store=store)

    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.ci
def test_an_error_of_the_caller_leaves_no_process_behind(
    model: Path, store: Path, tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))

    def fail(done: float, what: str) -> None:
        if done > 0.01:
            raise ZeroDivisionError(what)

    with pytest.raises(ZeroDivisionError):
        braid.compile(model, store=tmp_path / "store", on_progress=fail)
    assert set(psutil.Process().children(recursive=True)) <= before
    with pytest.raises(ZeroDivisionError), braid.compile(model, batch_sizes=[1, 4], store=store):
        raise ZeroDivisionError
    assert set(psutil.Process().children(recursive=True)) <= before


PROGRAM = """
import os, signal, sys
import psutil
import braid

assert not {"torch", "numpy", "grpc", "onnx"} & set(sys.modules), "import braid is cheap"

def interrupt(done, what):
    if done > 0.01:
        os.kill(os.getpid(), signal.SIGINT)

try:
    braid.compile(MODEL, store=STORE, batch_sizes=[1, 2, 3], on_progress=interrupt)
except KeyboardInterrupt:
    print("interrupted", len(psutil.Process().children(recursive=True)))
net = braid.compile(MODEL, store=STORE, batch_sizes=[1, 4])
print(net.plan_ids, flush=True)
of_databases = "sqlalchemy", "braid.server.store"
assert not [name for name in sys.modules if name.startswith(of_databases)]
import numpy as np
import onnx
net(np.zeros((1, 3, 16, 16), np.float32))
"""


@pytest.mark.ci
def test_an_interrupt_ends_all_processes_and_so_does_the_end_of_the_interpreter(
    net: braid.Network, model: Path, store: Path
) -> None:
    program = f"MODEL, STORE = {str(model)!r}, {str(store)!r}\n{PROGRAM}"

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"interrupted 0\n{net.plan_ids}\n"  # the plans were found in the store


@pytest.mark.ci
def test_static_shapes_are_compiled_as_they_are(store: Path) -> None:
    class Halves(torch.nn.Module):
        """A module that knows how many rows it gets."""

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.reshape(4, -1).sum(1)

    with braid.compile(Halves(), torch.zeros(2, 6), planner="sequential", store=store) as net:
        found = net(np.ones((2, 6), np.float32))

    assert np.array_equal(found, np.full(4, 3, np.float32))


def test_a_model_of_strings_runs_and_is_kept(tmp_path: Path) -> None:
    onnx.save_model(greeting(), tmp_path / "greeting.onnx")
    words = np.array([["ada", "bob"], ["", "zoë"], ["x", "y"]])
    wanted = [[f"hello {word}!" for word in row] for row in words.tolist()]

    with braid.compile(tmp_path / "greeting.onnx", store=tmp_path / "store") as net:
        answers = [net(words), net(words.astype(object)), net({"x": np.char.encode(words)})]
        net.save(tmp_path / "saved")
        with pytest.raises(InvalidTensor, match="has dtype 'FP32', the model takes BYTES"):
            net(np.zeros((1, 2), np.float32))
        with pytest.raises(InvalidTensor, match="has a int in element 1, not a string"):
            net(np.array([["a", 1]], object))
        with pytest.raises(InvalidTensor, match="axis 1 must be 2"):
            net(words[:, :1])

    assert [answer.tolist() for answer in answers] == [wanted] * 3
    with braid.load(tmp_path / "saved") as net:
        assert net(words[:1]).tolist() == wanted[:1]


def test_labels_come_as_strings_beside_numbers(tmp_path: Path) -> None:
    """Against ONNX Runtime; outputs of numbers are tensors if an input is one."""
    onnx.save_model(labels(), tmp_path / "labels.onnx")
    colour = np.array([["red"], ["blue"], ["green"]], object)
    size = np.array([[0.5], [2], [30]], np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "labels.onnx")
    label, scores = session.run(None, {"colour": colour, "size": size})

    store = tmp_path / "store"
    with braid.compile(import_ahead(tmp_path / "labels.onnx", store), store=store) as net:
        of_arrays = net({"colour": colour, "size": size})
        of_tensors = net({"colour": colour, "size": torch.from_numpy(size)})
        with pytest.raises(InvalidRequest, match="OneHotEncoder"):
            net({"colour": np.array([["mauve"]]), "size": size[:1]})

    assert of_arrays["label"].tolist() == of_tensors["label"].tolist() == label.tolist()
    assert np.array_equal(of_arrays["scores"], scores)
    assert torch.equal(of_tensors["scores"], torch.from_numpy(scores))


def compiled(case: Case, folder: Path) -> tuple[braid.Network, onnxruntime.InferenceSession]:
    path = folder / "model.onnx"
    path.write_bytes(case.build().SerializeToString())
    store = folder / "store"
    net = braid.compile(import_ahead(path, store), planner="sequential", store=store)
    return net, onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("name", CASES)
def test_calls_get_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    net, session = compiled(case, tmp_path)
    with net:
        for feed in (*case.feeds(), *case.feeds(1)):
            (wanted,) = session.run(None, dict(feed))
            np.testing.assert_allclose(net(feed), wanted, rtol=1e-4, atol=1e-5)


def test_calls_that_onnxruntime_refuses_are_refused_in_its_words(tmp_path: Path) -> None:
    net, _ = compiled(REFUSED, tmp_path)
    rows, columns = REFUSED.feeds()
    with net:
        with pytest.raises(InvalidRequest, match="Got invalid dimensions for input: mask"):
            net(rows)
        with pytest.raises(InvalidRequest, match=r"Add: Attempting to broadcast .* 5 by 6"):
            net(columns)
