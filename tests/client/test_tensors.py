from typing import Any

import ml_dtypes
import numpy as np
import pytest

from braid.core.tensor import DTYPE_BYTES
from braid_client import BFloat16Bits, InvalidArgument, ServerError, tensors
from braid_client.tensors import Array, read_tensor, stored, write_strings, write_tensor
from braid_client.wire import inference_pb2 as wire
from tests.client.by_hand import small_bytes  # noqa: F401

CASES: list[tuple[str, Any, list[Any]]] = [
    ("BOOL", np.bool_, [True, False, True]),
    ("UINT8", np.uint8, [0, 7, 255]),
    ("INT8", np.int8, [-128, 7, 127]),
    ("UINT16", np.uint16, [0, 258, 65535]),
    ("INT16", np.int16, [-32768, 258, 32767]),
    ("UINT32", np.uint32, [0, 66051, 2**32 - 1]),
    ("INT32", np.int32, [-(2**31), 66051, 2**31 - 1]),
    ("UINT64", np.uint64, [0, 2**40 + 3, 2**64 - 1]),
    ("INT64", np.int64, [-(2**63), 2**40 + 3, 2**63 - 1]),
    ("FP16", np.float16, [-1.5, np.inf, 65504.0]),
    ("BF16", ml_dtypes.bfloat16, [-1.5, -np.inf, 3.0e38]),
    ("FP32", np.float32, [-1.5, np.inf, 1e-45]),
    ("FP64", np.float64, [-1.5, np.nan, 5e-324]),
]


def written(name: str, array: Array) -> bytes:
    dtype, elements = stored(name, array)
    if dtype == "BYTES":
        return b"".join(write_strings(name, elements))
    return b"".join(write_tensor(name, dtype, elements))


def sent_and_received(array: Array) -> tuple[wire.Tensor, Array]:
    data = written("x", array)
    name, back = read_tensor(data)
    assert name == "x"
    return wire.Tensor.FromString(data), back


def same(left: Array, right: Array) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def test_the_cases_are_all_dtypes_of_the_server() -> None:
    assert {*(name for name, _, _ in CASES), "BYTES"} == set(DTYPE_BYTES) == set(tensors.DTYPES)


@pytest.mark.parametrize(("name", "dtype", "values"), CASES)
def test_every_dtype_comes_back_unchanged(name: str, dtype: Any, values: list[Any]) -> None:
    array = np.array([values, values], dtype)

    tensor, back = sent_and_received(array)

    assert (tensor.name, tensor.dtype, list(tensor.shape)) == ("x", name, [2, 3])
    assert len(tensor.data) == 6 * DTYPE_BYTES[name]
    assert back.dtype == array.dtype
    assert same(back, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array([["", "é\0"], ["日本", "x" * 300]]),
        np.array([["", "é\0"], ["日本", "x" * 300]], object),
        np.array([["", "é\0".encode()], ["日本".encode(), "x" * 300]], object),
        np.array("alone"),
        np.empty((0, 2), object),
    ],
)
def test_strings_come_back_as_objects(array: Array) -> None:
    tensor, back = sent_and_received(array)

    assert (tensor.dtype, tuple(tensor.shape)) == ("BYTES", array.shape)
    assert back.dtype == object
    texts = [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()]
    assert back.ravel().tolist() == texts
    assert not back.flags.writeable


@pytest.mark.parametrize("element", [1, None, ["a"], "\ud800"])
def test_objects_that_are_no_strings_are_refused(element: object) -> None:
    array = np.empty(1, object)
    array[0] = element

    with pytest.raises(InvalidArgument, match="input 'x'"):
        write_strings("x", array)


@pytest.mark.parametrize("data", [b"\1\0\0\0", b"\1\0", b"\1\0\0\0\xff", bytes(8)])
def test_strings_that_contradict_themselves_are_the_servers_fault(data: bytes) -> None:
    message = wire.Tensor(name="x", dtype="BYTES", shape=[1], data=data).SerializeToString()

    with pytest.raises(ServerError, match="BYTES"):
        read_tensor(message)


@pytest.mark.parametrize(
    ("name", "dtype", "values"),
    [case for case in CASES if case[0] != "BF16"],  # ml_dtypes has one byte order
)
def test_big_endian_arrays_are_sent_little_endian(name: str, dtype: Any, values: list[Any]) -> None:
    array = np.array(values, dtype)

    tensor, back = sent_and_received(array.astype(array.dtype.newbyteorder(">")))

    assert tensor.dtype == name
    assert same(back, array)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "layout",
    [
        lambda a: a.T,
        lambda a: a[::2, ::-1],
        lambda a: a[:, :0],
        lambda a: np.asfortranarray(a),
        lambda a: a[1, 2],
        lambda a: np.broadcast_to(a[0], (5, *a[0].shape)),
        lambda a: a.reshape(2, 1, 2, 1, 6),
    ],
    ids=["transposed", "strided", "empty", "fortran", "scalar", "broadcast", "many dimensions"],
)
def test_every_layout_is_sent_row_major(dtype: Any, layout: Any) -> None:
    array = layout(np.arange(24).reshape(4, 6).astype(dtype))

    _, back = sent_and_received(array)

    assert same(back, np.array(array))


@pytest.mark.parametrize("filler", range(8))
def test_received_arrays_are_aligned_and_read_only(filler: int) -> None:
    array = np.arange(4, dtype=np.float64)
    message = written("x" * filler, array)

    _, back = read_tensor(memoryview(message))

    assert back.flags.aligned
    assert same(back, array)
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


@pytest.mark.parametrize("array", [np.zeros(2, np.complex64), np.zeros(2, "M8[s]")])
def test_types_that_the_wire_has_not_are_refused_by_name(array: Array) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot be sent; convert it to one of BOOL, UINT8"):
        stored("x", array)


def test_a_list_is_refused_because_its_type_is_a_guess() -> None:
    with pytest.raises(InvalidArgument, match="'x' is a list; give a numpy array"):
        stored("x", [1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tensor",
    [
        wire.Tensor(name="y", dtype="FP32", shape=[2], data=b"\0" * 7),
        wire.Tensor(name="y", dtype="FP32", shape=[-1], data=b""),
        wire.Tensor(name="y", dtype="FP31", shape=[0], data=b""),
    ],
)
def test_an_output_that_contradicts_itself_is_the_servers_fault(tensor: wire.Tensor) -> None:
    with pytest.raises(ServerError, match="output 'y'"):
        read_tensor(tensor.SerializeToString())


class TestWithoutMlDtypes:
    @pytest.fixture(autouse=True)
    def absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensors, "_BFLOAT16", None)

    def test_bf16_comes_as_bits_that_know_their_values(self) -> None:
        exact = np.array([[1.0, -2.5], [np.inf, 3.0e38]], ml_dtypes.bfloat16)

        _, back = sent_and_received(exact)

        assert isinstance(back, BFloat16Bits)
        assert np.array_equal(back.float32(), exact.astype(np.float32))
        part = back[1:]
        assert isinstance(part, BFloat16Bits)
        assert np.array_equal(part.float32(), exact[1:].astype(np.float32))

    def test_bits_are_sent_as_bf16(self) -> None:
        tensor, back = sent_and_received(BFloat16Bits.of(np.array([1.5, -2.0])))

        assert tensor.dtype == "BF16"
        assert isinstance(back, BFloat16Bits)
        assert back.float32().tolist() == [1.5, -2.0]

    def test_arithmetic_on_bits_is_refused(self) -> None:
        with pytest.raises(TypeError):
            BFloat16Bits.of(np.ones(2)) + 1


def test_rounding_to_bf16_agrees_with_ml_dtypes() -> None:
    every_upper_half = np.arange(2**16, dtype=np.uint32) << 16
    tails = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (every_upper_half[:, None] | tails).view(np.float32)

    ours = BFloat16Bits.of(values).float32()
    with np.errstate(all="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16).astype(np.float32)

    assert ours.shape == values.shape
    assert np.array_equal(ours, theirs, equal_nan=True)
