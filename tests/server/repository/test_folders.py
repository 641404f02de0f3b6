import io
import os
import zipfile
from pathlib import Path

import pytest

from braid.core.errors import InvalidRequest
from braid.server.repository.folders import ModelFolder, look_at
from braid.server.repository.placing import model_file
from tests.models.external_data import names_data


def write(path: Path, content: bytes = b"model") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def net(root: Path) -> ModelFolder:
    return look_at(root).models["net"]


def test_numbers_are_versions_and_other_names_get_a_line(tmp_path: Path) -> None:
    for place in ("net/1/model.onnx", "net/20/model.onnx", "net/03/model.onnx", "net/labels.txt"):
        write(tmp_path / place)
    for place in ("README.md", ".git/x", "net/.copying/model.onnx", "net/configs/a.pbtxt"):
        write(tmp_path / place)
    for place in ("bad name", "empty", "net/latest"):
        (tmp_path / place).mkdir()
    (tmp_path / "away").symlink_to("nowhere")

    look = look_at(tmp_path)

    assert {name: set(each.versions) for name, each in look.models.items()} == {
        "net": {1, 20},
        "empty": set(),
        "away": set(),
    }
    assert look.models["away"].unreadable
    assert {path.name: line.split()[0] for path, line in look.lines.items()} == {
        "bad name": "model",
        "03": "not",
        "latest": "not",
    }


def test_a_stamp_changes_with_any_file_that_is_read(tmp_path: Path) -> None:
    stamps = []
    for place in (
        "net/1/model.onnx",
        "net/1/weights.bin",
        "net/1/.w",
        "net/1/a/b/w",
        "net/2/model.onnx/model.onnx",
    ):
        write(tmp_path / place)
        stamps.append(net(tmp_path).stamp)
    write(tmp_path / "net/config.pbtxt")
    stamps.append(net(tmp_path).stamp)
    os.utime(tmp_path / "net/1/model.onnx", (1, 1))
    stamps.append(net(tmp_path).stamp)
    (tmp_path / "net/1/model.onnx").chmod(0o600)
    stamps.append(net(tmp_path).stamp)

    assert len(set(stamps)) == len(stamps)
    assert net(tmp_path).stamp == stamps[-1]


def test_what_is_linked_to_counts_like_what_lies_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "net").mkdir(parents=True)
    for release in ("a", "b"):
        write(tmp_path / release / "model.onnx", release.encode())
    link = root / "net/1"
    link.symlink_to(tmp_path / "a")
    before = net(root)
    link.unlink()
    link.symlink_to(tmp_path / "b")

    assert net(root).stamp != before.stamp
    assert b"".join(model_file(net(root).versions[1], "model.onnx").chunks()) == b"b"
    link.unlink()
    link.symlink_to("nowhere")
    assert set(net(root).versions) == {1}, "a volume may be away for a moment"
    with pytest.raises(InvalidRequest, match="1 is a link that leads nowhere"):
        model_file(net(root).versions[1], "model.onnx")


def test_external_data_goes_with_the_model_in_a_zip_of_names_and_contents(tmp_path: Path) -> None:
    model = names_data("weights.bin")
    write(tmp_path / "net/1/model.onnx", model)
    write(tmp_path / "net/1/weights.bin", b"w" * 5_000_000)
    write(tmp_path / "net/1/README.md")
    write(tmp_path / "net/1/other.onnx", model)
    write(tmp_path / "net/2/model.onnx/model.onnx", model)
    write(tmp_path / "net/2/model.onnx/weights.bin", b"w" * 5_000_000)

    one, two = (model_file(each, "model.onnx") for each in net(tmp_path).versions.values())

    with zipfile.ZipFile(io.BytesIO(b"".join(one.chunks()))) as archive:
        assert {each.filename: each.file_size for each in archive.infolist()} == {
            "model.onnx": len(model),
            "weights.bin": 5_000_000,
        }
        assert archive.testzip() is None
    assert one.digest() == two.digest()


def test_data_that_is_missing_or_lies_elsewhere_is_named(tmp_path: Path) -> None:
    write(tmp_path / "net/1/model.onnx", names_data("weights.bin"))
    write(tmp_path / "net/2/model.onnx", names_data("../1/weights.bin"))
    versions = net(tmp_path).versions

    with pytest.raises(InvalidRequest, match=r"'weights\.bin', which is missing"):
        model_file(versions[1], "model.onnx")
    with pytest.raises(InvalidRequest, match="outside its folder"):
        model_file(versions[2], "model.onnx")


def test_a_folder_without_a_model_file_is_told_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "net/1/other.onnx")
    os.mkfifo(tmp_path / "net/1/pipe.onnx")
    version = net(tmp_path).versions[1]

    assert model_file(version, "other.onnx").data == ()
    with pytest.raises(InvalidRequest, match=r"no model\.onnx in there; default_model_filename"):
        model_file(version, "model.onnx")
    with pytest.raises(InvalidRequest, match="no regular file"):
        model_file(version, "pipe.onnx")
