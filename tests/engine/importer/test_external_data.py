"""ONNX models with external data: a zip of flat, exactly named files, and nothing else."""

import io
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from braid.core.errors import ModelImportError
from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.upload.archive import Archive
from braid.engine.importer.upload.onnx_file import unpack_bundle
from braid.engine.importer.upload.uploaded_model import open_upload
from tests.engine.importer.running import imported, left_in
from tests.models.bad_onnx import external_data
from tests.models.graphs import from_x

WEIGHT = np.arange(8, dtype=np.float32)


def with_data(location: str = "w.bin", **entries: int) -> bytes:
    made = from_x("y = Add(x, w)")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    made.graph.initializer.append(tensor)
    return made.SerializeToString()


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


async def test_a_zip_of_model_and_data_is_imported(tmp_path: Path) -> None:
    files = {"net.onnx": with_data(offset=16, length=16), "w.bin": WEIGHT.tobytes()}

    artefact = load_artefact(await imported(zipped(files), tmp_path))

    (weight,) = artefact.weights.values()
    assert torch.equal(weight, torch.arange(4, 8).float())
    assert artefact.report.verified.reference.startswith("onnxruntime")


NAMES = {
    "./w.bin": "w.bin",
    "a/../w.bin": "w.bin",
    "layers//0/./kernel:0": "layers/0/kernel:0",
    "k:0": "k:0",
    " my weights, über 100 %.bin": " my weights, über 100 %.bin",
    ".weights": ".weights",
    "..weights": "..weights",
    "وزن\u200cها.bin": "وزن\u200cها.bin",
    "a_part.onnx": "a_part.onnx",
    "net.onnx.data/z.onnx": "net.onnx.data/z.onnx",
    "é" * 127: "é" * 127,
}


@pytest.mark.parametrize(("location", "name"), NAMES.items())
def test_data_inside_the_folder_has_any_name(location: str, name: str, tmp_path: Path) -> None:
    """ONNX Runtime, which reads the location as it stands, answers the same."""
    path = tmp_path / "upload"
    path.write_bytes(zipped({"net.onnx": with_data(location), name: WEIGHT[:4].tobytes()}))

    upload = open_upload(path, tmp_path)
    _, weights, _ = upload.lowered()

    (weight,) = weights.values()
    assert torch.equal(weight, torch.arange(4).float())
    (sums,) = upload.reference().run({"x": torch.ones(1, 4)}).values()
    assert torch.equal(sums, torch.tensor([[1.0, 2.0, 3.0, 4.0]]))


def test_names_of_a_zip_without_a_stated_encoding_are_utf_8(tmp_path: Path) -> None:
    """As macOS writes them."""
    path = tmp_path / "upload"
    packed = zipped({"net.onnx": with_data("poids_é"), "poids_é": WEIGHT[:4].tobytes()})
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.infolist()[1].flag_bits & 0x800
    path.write_bytes(packed.replace(b"\x14\0\0\x08", b"\x14\0\0\0"))

    assert "poids_é" in Archive(path).names


BAD = {
    "no data": ({"net.onnx": with_data()}, "not part of the upload"),
    "a parent": ({"net.onnx": with_data("../w.bin"), "w.bin": b"1" * 16}, "leaves the upload"),
    "absolute": ({"net.onnx": with_data("/etc/passwd"), "w.bin": b"1" * 16}, "leaves the upload"),
    "a detour": ({"net.onnx": with_data("a/../../w.bin"), "w.bin": b"1" * 16}, "leaves the upload"),
    "a file as a folder": (
        {"net.onnx": with_data("w.bin/../w.bin"), "w.bin": b"1" * 16},
        "a file and as a folder",
    ),
    "a long name": ({"net.onnx": with_data("w" * 300), "w" * 300: b"1" * 16}, "too long"),
    "a control character": ({"net.onnx": with_data(), "w\x1b[2J": b"1" * 16}, "leaves it"),
    "models that name each other": (
        {"a.onnx": with_data("b.onnx"), "b.onnx": with_data("a.onnx")},
        "2 .onnx files",
    ),
    "the model": ({"net.onnx": with_data("net.onnx")}, "not part of the upload"),
    "too little": ({"net.onnx": with_data(), "w.bin": b"123"}, "needs 16 bytes"),
    "behind the end": ({"net.onnx": with_data(offset=9), "w.bin": b"1" * 16}, "needs 16 bytes"),
    "far behind": ({"net.onnx": with_data(offset=99), "w.bin": b"1" * 16}, "which has 16"),
    "before": ({"net.onnx": with_data(offset=-4), "w.bin": b"1" * 16}, "which has 16"),
    "a folder": ({"a/net.onnx": with_data(), "a/w.bin": b"1" * 16}, "without folders"),
    "a hidden file": ({"net.onnx": with_data(), ".w.bin": b"1" * 16}, "not part of the upload"),
    "two models": ({"a.onnx": with_data(), "b.onnx": with_data()}, "2 .onnx files"),
    "no model": ({"w.bin": b"1" * 16}, "0 .onnx files"),
    "too much": ({"net.onnx": with_data(), "w.bin": b"1" * 16, "v.bin": b"1"}, "does not use"),
    "deep folders": (
        {"net.onnx": with_data("a/" * 40 + "w.bin"), "a/" * 40 + "w.bin": b"1" * 16},
        "more than 32 deep",
    ),
    "many folders": (
        {"net.onnx": with_data(), "w.bin": b"1" * 16, **{f"{i}/v": b"" for i in range(1001)}},
        "more than 1000 folders",
    ),
    "a deep detour": (
        {"net.onnx": with_data("a/../" * 40 + "w.bin"), "w.bin": b"1" * 16},
        "more than 32 deep",
    ),
    "a way out": ({"net.onnx": with_data(), "../w.bin": b"1" * 16}, "leaves it"),
}


def test_a_checkpoint_of_pytorch_names_the_ways_to_export(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save({"weight": torch.ones(2)}, path)

    with pytest.raises(ModelImportError, match=r"torch\.export\.save.*torch\.onnx\.export"):
        unpack_bundle(Archive(path), tmp_path)


@pytest.mark.parametrize("name", BAD)
def test_another_zip_is_refused(name: str, tmp_path: Path) -> None:
    files, reason = BAD[name]
    path = tmp_path / "upload"
    path.write_bytes(zipped(files))

    with pytest.raises(ModelImportError, match=reason):
        open_upload(path, tmp_path).lowered()

    assert not (tmp_path.parent / "w.bin").exists()


@pytest.mark.parametrize(
    "how", ["hard link", *(pytest.param(how, marks=pytest.mark.ci) for how in ("file", "symlink"))]
)
async def test_a_file_that_lies_beside_the_upload_is_never_read(how: str, tmp_path: Path) -> None:
    """A hard link passes ONNX Runtime's own check of the path."""
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_bytes(WEIGHT.tobytes())
    beside = tmp_path / "w.bin"
    if how == "symlink":
        beside.symlink_to(secret)
    elif how == "hard link":
        os.link(secret, beside)
    else:
        beside.write_bytes(WEIGHT.tobytes())

    with pytest.raises(ModelImportError, match="not part of the upload"):
        await imported(external_data("w.bin"), tmp_path)

    assert left_in(tmp_path) == ["w.bin"]


def test_unpacked_files_are_plain_and_private(tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes(zipped({"net.onnx": with_data(), "w.bin": WEIGHT.tobytes()}))

    loaded, file = unpack_bundle(Archive(path), tmp_path)

    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert {e.is_file(follow_symlinks=False) for e in os.scandir(file.parent)} == {True}
    assert [list(tensor.external_data) for tensor in loaded.graph.initializer] == [[]]
    assert onnx.load(file).graph.initializer[0].name == "w"
