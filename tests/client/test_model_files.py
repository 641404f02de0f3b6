import io
import os
from pathlib import Path

import pytest
import torch

from braid_client import Client, InvalidArgument
from braid_client.model_files import HEAD_BYTES, why_no_model
from tests.client.fake_server import FakeServer
from tests.models.bad_onnx import cycle, nested_ifs, slow


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
