"""Memory that runs out is called so, and what was freed goes back."""

import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import onnx
import pytest

from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.importer.verification.example_inputs import Trials, find_example
from braid.engine.onednn.functions import Functions
from braid.engine.onednn.library import OneDnn
from braid.engine.onnx import prepare
from braid.engine.onnx.old_operators import raised
from braid.engine.ops import evaluation
from braid.engine.runtime.memory import freed_bytes, is_out_of_memory, leaves_interpreter_unsound
from tests.models.small import small_cnn

LACKS = [
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
    ValueError("std::bad_alloc"),
    RuntimeError("could not create a primitive"),
]

RUNNING_SUM = """
    <ir_version: 10, opset_import: ["": 21]>
    running (float[n, 4] x) => (float[n, 4] y) <int64 axis = {1}> { y = CumSum(x, axis) }
"""

OLD_SUM = """
    <ir_version: 3, opset_import: ["" : 6]>
    old (float[2, 3] x, float[2] b) => (float[2, 3] y) { y = Add <axis = 0, broadcast = 1>(x, b) }
"""


def _failing(lack: Exception) -> object:
    def fail(*_: object, **__: object) -> NoReturn:
        raise lack

    return fail


@pytest.mark.parametrize("lack", LACKS)
def test_an_operator_that_meets_it_is_not_called_unable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    model = onnx.parser.parse_model(RUNNING_SUM)  # torch tells its shape, no rule of ours
    onnx.save(model, tmp_path / "m.onnx")
    source = open_upload(tmp_path / "m.onnx", tmp_path)
    template, weights, _ = source.lowered()
    reference = source.reference()
    monkeypatch.setattr(evaluation, "call", _failing(lack))
    with pytest.raises(MemoryError):
        find_example(Trials(template, weights, reference, 1 << 30), {})


@pytest.mark.parametrize("lack", LACKS)
def test_a_file_whose_check_meets_it_is_not_called_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    model = onnx.load(small_cnn(tmp_path / "m.onnx"))
    model.functions.add(name="f", domain="own")
    monkeypatch.setattr("onnx.checker.check_model", _failing(lack))
    with pytest.raises(MemoryError):
        prepare.prepare(model)


@pytest.mark.parametrize("lack", LACKS)
def test_ranks_of_an_old_file_are_not_called_unknown(
    monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    model = onnx.parser.parse_model(OLD_SUM)
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", _failing(lack))
    with pytest.raises(MemoryError):
        raised(model)


def test_a_kernel_that_there_is_not_is_no_lack_of_memory() -> None:
    words = "could not create a primitive descriptor for the matmul primitive. Run workload with"
    assert not is_out_of_memory(RuntimeError(words))


def test_onednn_without_memory_is_not_taken_for_a_kernel_that_there_is_not() -> None:
    class Full:
        """A library that answers dnnl_out_of_memory to all that it is to make."""

        def __getattr__(self, name: str) -> Mock:
            return Mock(return_value=1)

    with pytest.raises(MemoryError, match="oneDNN answered 1 to engine_create") as caught:
        OneDnn(Functions(Full(), Mock()))

    assert is_out_of_memory(caught.value)
    assert not leaves_interpreter_unsound(caught.value)


HOLD_AND_FREE = """
import ctypes
from pathlib import Path
from braid.engine.runtime.memory import freed_bytes, give_back_freed_memory, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
before = resident()
blocks = [libc.malloc(1 << 20) for _ in range(400)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
held = resident()
for block in blocks[:-1]:  # the last one keeps the top of the heap in use
    libc.free(block)
kept, free = resident(), freed_bytes() >> 20
was_much = give_back_freed_memory()
print(before, held, kept, free, was_much, resident())
"""


@pytest.mark.skipif(freed_bytes() == 0, reason="this C library does not tell")
def test_what_a_huge_request_freed_goes_back_to_the_system() -> None:
    command = [sys.executable, "-c", HOLD_AND_FREE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, held, kept, free, was_much, after = done.stdout.split()

    assert int(held) - int(before) >= 390, "MiB"
    assert int(kept) >= int(held) - 10, "it stays with the process"
    assert int(free) >= 390
    assert was_much == "True"
    assert int(after) - int(before) < 40
