import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from braid.core.errors import InvalidArtefact, ModelImportError
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.artefact import load_artefact, write_artefact
from braid.engine.importer.host.report import (
    BatchAxes,
    Report,
    Verified,
    artefact_key,
    file_digest,
    read_graph,
    read_report,
    read_report_of,
    verify_files,
)
from braid.engine.ops.dtypes import TORCH_DTYPES, spec_of

REPORT = Report(
    sha256="0" * 64,
    size_bytes=123,
    source="onnx",
    opset=17,
    batch=BatchAxes({"x": 0}, {"y": 0, "z": None}),
    static_inputs=(),
    example_shapes={"x": (1, 4)},
    static_values={},
    warnings=("careful",),
    verified=Verified("an oracle", (1, 3, 5), 1e-6, 1e-4),
)


def written(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """One constant of every element type, a transposed view, and some that share memory."""
    weights = {name: torch.ones(2, 3).to(dtype) for name, dtype in TORCH_DTYPES.items()}
    weights["view"] = torch.arange(6.0).reshape(2, 3).t()
    weights["tied"], weights["part"] = weights["FP32"], weights["FP32"][1:]
    graph = OpGraph(
        name="drawn",
        inputs={"x": TensorType("FP32", ("batch", 4))},
        outputs={"y": "r"},
        constants={name: spec_of(tensor) for name, tensor in weights.items()},
        operators=(Operator("clip", "aten.clamp", ("x",), ("r",), {"min": float("-inf")}),),
    )
    artefact = folder / "artefact"
    write_artefact(artefact, graph, weights, REPORT)
    return artefact, weights


def test_an_artefact_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder, weights = written(tmp_path)

    loaded = load_artefact(folder)

    assert dataclasses.replace(loaded.report, files={}) == REPORT
    assert loaded.graph == read_graph(folder, read_report(folder))
    assert loaded.graph.operators[0].attributes == {"min": float("-inf")}
    for name, tensor in weights.items():
        assert torch.equal(loaded.weights[name], tensor)
    verify_files(folder, read_report(folder))


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors"])
def test_a_changed_byte_is_noticed(name: str, tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)

    with pytest.raises(InvalidArtefact, match=f"{name} was changed"):
        load_artefact(folder)
    with pytest.raises(InvalidArtefact, match=name):
        verify_files(folder, read_report(folder))


@pytest.mark.parametrize("name", ["graph.json", "weights.safetensors", "report.json"])
def test_a_missing_file_is_an_invalid_artefact(name: str, tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    (folder / name).unlink()

    with pytest.raises(InvalidArtefact, match=name):
        load_artefact(folder)


def test_an_artefact_is_known_by_its_upload_or_by_that_and_its_samples(tmp_path: Path) -> None:
    report = dataclasses.replace(REPORT, samples="5" * 64)
    write_artefact(tmp_path / "made", OpGraph("empty", {}, {}, {}, ()), {}, report)

    assert read_report_of(tmp_path / "made", REPORT.sha256).samples == "5" * 64
    assert read_report_of(tmp_path / "made", artefact_key(REPORT.sha256, "5" * 64))
    for key in (artefact_key(REPORT.sha256, "6" * 64), "5" * 64):
        with pytest.raises(InvalidArtefact, match="another upload"):
            read_report_of(tmp_path / "made", key)


def test_the_upload_is_kept_and_must_be_what_was_uploaded(tmp_path: Path) -> None:
    upload = tmp_path / "upload"
    upload.write_bytes(b"a model")
    report = dataclasses.replace(REPORT, sha256=file_digest(upload), size_bytes=7)
    graph = OpGraph("empty", {}, {}, {}, ())

    write_artefact(tmp_path / "kept", graph, {}, report, upload)
    write_artefact(tmp_path / "swapped", graph, {}, REPORT, upload)
    upload.unlink()

    assert (tmp_path / "kept" / "model.onnx").read_bytes() == b"a model"
    verify_files(tmp_path / "kept", read_report(tmp_path / "kept"))
    with pytest.raises(InvalidArtefact, match="should hold"):
        verify_files(tmp_path / "swapped", read_report(tmp_path / "swapped"))


def put_a_library_beside(folder: Path) -> None:
    (folder / "payload.so").write_bytes(b"")


def link_to_the_weights(folder: Path) -> None:
    (folder / "weights.safetensors").rename(folder.parent / "elsewhere")
    (folder / "weights.safetensors").symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize("change", [put_a_library_beside, link_to_the_weights])
def test_what_does_not_belong_is_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    folder, _ = written(tmp_path)
    change(folder)

    with pytest.raises(InvalidArtefact, match="should hold"):
        verify_files(folder, read_report(folder))


@pytest.mark.parametrize("change", [{"format": 2}, {"batch": 7}, {"opset": "new"}, {"files": 1}])
def test_a_malformed_report_is_an_invalid_artefact(
    change: dict[str, object], tmp_path: Path
) -> None:
    folder, _ = written(tmp_path)
    document = json.loads((folder / "report.json").read_text()) | change
    (folder / "report.json").write_text(json.dumps(document))

    with pytest.raises(InvalidArtefact, match=r"report\.json"):
        read_report(folder)


def test_the_name_safetensors_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    weights = {"__metadata__": torch.ones(1)}
    graph = OpGraph(
        name="drawn",
        inputs={"x": TensorType("FP32", (1,))},
        outputs={"y": "r"},
        constants={name: spec_of(tensor) for name, tensor in weights.items()},
        operators=(Operator("add", "aten.add", ("x", "__metadata__"), ("r",)),),
    )

    with pytest.raises(ModelImportError, match="__metadata__"):
        write_artefact(tmp_path / "artefact", graph, weights, REPORT)
