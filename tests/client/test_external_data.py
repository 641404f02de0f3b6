"""Files of a model: which go with it, and how they are sent."""

import io
import os
import zipfile
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from braid.engine.importer.upload.archive import Archive
from braid_client import Client, InvalidArgument
from braid_client.external_data import with_its_data
from braid_client.model_files import HEAD_BYTES, why_no_model
from braid_client.upload import open_model
from tests.client.fake_server import FakeServer
from tests.models.bad_onnx import cycle, nested_ifs, slow
from tests.models.external_data import in_several_files, names_data


def sent(path: Path) -> bytes:
    with open_model(path) as (chunks, _):
        return b"".join(chunks)


def members(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        assert files.testzip() is None
        return {name: files.read(name) for name in files.namelist()}


@pytest.mark.parametrize(
    "names",
    [
        ["model.onnx.data"], ["other.bin"], ["a.bin", "b.bin"], ["data/w.bin"], ["k:0"], [".w"],
        ["my weights_é"], ["a.onnx"],
    ],
)  # fmt: skip
def test_a_model_is_sent_with_the_files_it_names(tmp_path: Path, names: list[str]) -> None:
    path = in_several_files(tmp_path, "model.onnx", *names)
    (tmp_path / "another.onnx").write_bytes(path.read_bytes())
    (tmp_path / "unused.bin").write_bytes(b"unused")

    files = members(sent(path))

    assert files == {
        name: (tmp_path / name).read_bytes() for name in ["model.onnx", *sorted(names)]
    }


def test_two_models_share_a_data_file(tmp_path: Path) -> None:
    one = in_several_files(tmp_path, "one.onnx", "shared.data")
    two = in_several_files(tmp_path, "two.onnx", "shared.data")

    assert set(members(sent(one))) == {"one.onnx", "shared.data"}
    assert set(members(sent(two))) == {"two.onnx", "shared.data"}


def test_a_model_whose_name_says_nothing_is_sent_as_an_onnx_file(tmp_path: Path) -> None:
    path = in_several_files(tmp_path, "weights of net", "net.data")

    assert set(members(sent(path))) == {"model.onnx", "net.data"}


@pytest.mark.parametrize("data", ["model.onnx", "model.onnx/w.bin"])
def test_its_name_in_the_zip_is_not_that_of_its_data(tmp_path: Path, data: str) -> None:
    path = in_several_files(tmp_path, "weights of net", data, "_model.onnx")

    archive = tmp_path / "upload"
    archive.write_bytes(sent(path))

    assert set(members(archive.read_bytes())) == {"__model.onnx", "_model.onnx", data}
    (tmp_path / "unpacked").mkdir()
    assert Archive(archive).unpack(tmp_path / "unpacked").name == "__model.onnx"


def test_detours_are_left_out_and_no_file_is_sent_twice(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"w" * 16)
    path = tmp_path / "net.onnx"
    path.write_bytes(names_data("./w.bin", "w.bin", "data/../w.bin"))

    assert members(sent(path)) == {"net.onnx": path.read_bytes(), "w.bin": b"w" * 16}


def test_equal_files_are_sent_as_equal_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        os.utime(in_several_files(folder, "model.onnx", "w.bin"), (number, number))

    assert len({with_its_data(folder / "model.onnx").digest() for folder in folders}) == 1


def test_a_model_in_one_file_is_sent_as_it_is(tmp_path: Path) -> None:
    path = in_several_files(tmp_path, "model.onnx", "w.bin")
    whole = onnx.load(path)
    onnx.save(whole, tmp_path / "whole.onnx")

    assert sent(tmp_path / "whole.onnx") == (tmp_path / "whole.onnx").read_bytes()


def test_tensors_of_subgraphs_functions_and_attributes_are_looked_at(tmp_path: Path) -> None:
    def away(location: str) -> TensorProto:
        tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="offset", value="0")
        tensor.external_data.add(key="location", value=location)
        return tensor

    body = helper.make_graph(
        [helper.make_node("Constant", [], ["z"], value=away("attribute.bin"))],
        "then", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
        [away("subgraph.bin")],
    )  # fmt: skip
    branch = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inner = helper.make_node("Constant", [], ["o"], value=away("function.bin"))
    function = helper.make_function("own", "F", [], ["o"], [inner], [helper.make_opsetid("", 17)])
    sparse = onnx.SparseTensorProto(dims=[1], values=away("sparse.bin"))
    graph = helper.make_graph(
        [branch],
        "main",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        sparse_initializer=[sparse],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, functions=[function]).SerializeToString())
    names = ["attribute.bin", "function.bin", "sparse.bin", "subgraph.bin"]
    for name in names:
        (tmp_path / name).write_bytes(b"1234")

    assert [data.name for data in with_its_data(path).data] == names


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "C:\\w", "..\\w"])
def test_weights_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(b"1" * 16)
    path = tmp_path / "models" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(names_data(location))

    with pytest.raises(InvalidArgument, match="outside its folder"):
        sent(path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(names_data("model.onnx.data"))

    with pytest.raises(InvalidArgument, match=r"'model\.onnx\.data', which is missing in"):
        sent(path)


@pytest.mark.parametrize("where", ["w.bin", "data/w.bin"])
def test_a_link_to_another_file_is_not_followed(tmp_path: Path, where: str) -> None:
    """A model of a stranger could name it, and a file of this machine would be uploaded."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/w.bin").write_bytes(b"1" * 16)
    folder = tmp_path / "models"
    folder.mkdir()
    first = where.partition("/")[0]
    (folder / first).symlink_to(tmp_path / "secret" / ("w.bin" if first == where else ""))
    path = folder / "model.onnx"
    path.write_bytes(names_data(where))

    with pytest.raises(InvalidArgument, match="symbolic link"):
        sent(path)


def test_weights_in_a_folder_or_a_pipe_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(names_data("w.bin"))
    (tmp_path / "w.bin").mkdir()
    with pytest.raises(InvalidArgument, match="no regular file"):
        sent(path)
    (tmp_path / "w.bin").rmdir()
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(InvalidArgument, match="no regular file"):
        sent(path)


def test_weights_of_several_gigabytes_are_sent_piece_by_piece(tmp_path: Path) -> None:
    """The file is sparse: it takes no disk. A zip of more than 2 GiB needs fields of 64 bits."""
    path = tmp_path / "model.onnx"
    path.write_bytes(names_data("model.onnx.data"))
    with (tmp_path / "model.onnx.data").open("wb") as data:
        data.truncate(5 << 30)

    with open_model(path) as (chunks, size):
        pieces = [len(next(chunks)) for _ in range(64)]

    assert size > 5 << 30
    assert 1 << 20 <= max(pieces) < (1 << 20) + 1024  # beside its head in the zip


def test_a_truncated_model_is_left_to_the_server(tmp_path: Path) -> None:
    path, whole = tmp_path / "model.onnx", names_data("w.bin")
    (tmp_path / "w.bin").write_bytes(b"1" * 16)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert with_its_data(path).data in ((), (tmp_path / "w.bin",))


def saved(how: str) -> bytes:
    """A linear layer as torch writes it in one of its ways."""
    layer, stream = torch.nn.Linear(2, 2), io.BytesIO()
    if how == "export":
        torch.export.save(torch.export.export(layer, (torch.ones(1, 2),)), stream)
    elif how == "script":
        torch.jit.save(torch.jit.script(layer), stream)
    else:
        torch.save(layer.state_dict(), stream, _use_new_zipfile_serialization=how == "zip")
    return stream.getvalue()


def reason(content: bytes) -> str:
    return why_no_model(content[:HEAD_BYTES], whole=len(content) <= HEAD_BYTES)


@pytest.mark.parametrize("content", [cycle(), nested_ifs(3), slow(), saved("export")])
def test_a_model_passes(content: bytes) -> None:
    assert reason(content) == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"root:x:0:0:root:/root:/bin/bash\n" * 30, ["neither ONNX", ".pt2"]),
        (b"# A page\n\nof text", ["neither ONNX"]),
        (b'{"a": 1}', ["neither ONNX"]),
        (bytes(100), ["neither ONNX"]),
        (cycle()[:-3], ["truncated"]),
        (b"\x1f\x8b\x08" + bytes(9), ["gzip", "unpack"]),
        (b"\x7fELF\x02\x01", ["a program"]),
        (b"\x10\0\0\0TFL3" + bytes(9), ["TFLite"]),
        (b"\x18\0\0\0ORTM" + bytes(9), [".ort", "the .onnx"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", ["git lfs pull"]),
        (b"<!DOCTYPE html>\n<html>", ["a web page"]),
        (b"<?xml version='1.0'?>\n<net>", ["OpenVINO"]),
        (b"\x40\0\0\0\0\0\0\0{" + bytes(70), ["safetensors", "torch.export.save"]),
    ],
)
def test_what_is_none_is_told(content: bytes, words: list[str]) -> None:
    for word in words:
        assert word in reason(content)


@pytest.mark.parametrize("how", ["zip", "pickle", "script"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_of_pytorch_that_hold_code_name_the_two_ways_to_export(how: str) -> None:
    found = reason(saved(how))

    assert "torch.export.save(torch.export.export(model, (example,)), 'model.pt2')" in found
    assert "torch.onnx.export(model, (example,), 'model.onnx'" in found


def test_nothing_of_such_a_file_is_sent(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model\n" * 1000)
    (tmp_path / "empty.onnx").touch()

    with Client(server.address) as braid:
        for path, words in (
            (tmp_path / "text.onnx", "text.onnx: not a model"),
            (tmp_path / "empty.onnx", "empty.onnx: the file is empty"),
            (tmp_path, "is a folder; name the .onnx"),
            (Path(os.devnull), "is a device"),
        ):
            with pytest.raises(InvalidArgument, match=words):
                braid.register("net", path)

    assert server.uploads == []
