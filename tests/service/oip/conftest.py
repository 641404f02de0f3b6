"""One server for all tests of the protocol, with models of several datatypes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tritonclient.grpc import service_pb2_grpc

from tests.models import strings
from tests.models.small import choosing, doubling, small_cnn, two_inputs
from tests.service.server_process import ServerProcess, serving

SHM_KEY = f"/braid_test_{os.getpid()}"
"""Key of a shared memory object that no other process makes; a test removes its own."""


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("oip_models")
    texts = {
        "greeting": strings.greeting(),
        "labels": strings.labels(),
        "counts": strings.word_counts(),
        "names": strings.numbers_to_names(),
        "turned": strings.turned(),
        "echoes": strings.echoes(),
    }
    for name, made in texts.items():
        onnx.save_model(made, folder / f"{name}.onnx")
    return {
        **{name: folder / f"{name}.onnx" for name in texts},
        "cnn": small_cnn(folder / "cnn.onnx"),
        "two": two_inputs(folder / "two.onnx"),
        "fp32": doubling(folder / "fp32.onnx", TensorProto.FLOAT),
        "fp16": doubling(folder / "fp16.onnx", TensorProto.FLOAT16),
        "bf16": doubling(folder / "bf16.onnx", TensorProto.BFLOAT16),
        "int32": doubling(folder / "int32.onnx", TensorProto.INT32),
        "uint64": doubling(folder / "uint64.onnx", TensorProto.UINT64),
        "chosen": choosing(folder / "chosen.onnx", TensorProto.UINT64),
    }


@pytest.fixture(scope="session")
def oip_server(
    tmp_path_factory: pytest.TempPathFactory, model_files: dict[str, Path]
) -> Iterator[ServerProcess]:
    """Offers system shared memory and has every model of ``model_files``."""
    store = tmp_path_factory.mktemp("oip") / "store"
    server = ServerProcess(store, BRAID_SYSTEM_SHARED_MEMORY="true").start()
    with serving(server, model_files, "sequential"):
        yield server


@pytest.fixture
def stub(oip_server: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(oip_server.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def ramp(rows: int, columns: int = 3) -> np.ndarray:
    """Rows that differ."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
