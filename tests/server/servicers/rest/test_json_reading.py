"""Bodies in JSON: read in pieces, tensors, files."""

import base64
import json
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import PIECE_BYTES, finished
from braid.core.strings import PIECE_STRINGS, length_prefixed
from braid.server.servicers.oip.contents import DTYPES
from braid.server.servicers.oip.wire import messages
from braid.server.servicers.rest.inference import MAX_JSON_BYTES, RestRequest, read_request
from braid.server.servicers.rest.json_messages import read_load
from braid.server.servicers.rest.json_reading import MAX_PARTS, Numbers, read_json
from braid.server.servicers.rest.json_tensors import (
    PIECE_ELEMENTS,
    PIECE_TEXT_BYTES,
    raw_of,
    texts_of,
)

COUNT = MAX_PARTS + 1000  # of numbers, so that they are read apart
LONG = MAX_JSON_BYTES - 1000


def body(data: str, datatype: str = "FP32", name: str = "x") -> bytes:
    """A request with one input; strings around the data look like numbers and brackets."""
    given = json.dumps({"name": name, "datatype": datatype, "shape": [1], "data": "here"})
    others = {"name": 'y[1,2]"\\', "datatype": "BYTES", "shape": [2], "data": ['[1,2,"\\', "]}"]}
    text = json.dumps({"inputs": ["this", others], "id": "[1,[2],{"})
    return text.replace('"this"', given.replace('"here"', data)).encode()


def read(data: str, datatype: str = "FP32", name: str = "x") -> RestRequest:
    return finished(read_request(body(data, datatype, name), None, "m", ""))


def text_of(array: np.ndarray, random_: random.Random) -> str:
    """JSON of an array, with spaces here and there."""
    separators = random_.choice([(",", ":"), (", ", ": "), (" , ", ":"), (",\n", ":")])
    return json.dumps(array.tolist(), separators=separators)


@pytest.mark.parametrize("seed", range(12))
def test_long_lists_of_numbers_are_read_bit_by_bit(seed: int) -> None:
    random_, rng = random.Random(seed), np.random.default_rng(seed)
    datatype = random_.choice(["FP32", "FP64", "FP16", "INT32", "INT64", "UINT8", "BOOL"])
    shape = random_.choice([(COUNT,), (COUNT // 4, 4), (2, COUNT // 2), (1, 3, COUNT // 9, 3)])
    array = rng.normal(0, 30, shape) if datatype[0] in "FI" else abs(rng.normal(0, 30, shape))
    array = array.astype(DTYPES[datatype])
    if datatype[0] == "F":
        array.flat[:: random_.choice([7, COUNT - 1])] = random_.choice([np.nan, np.inf, -np.inf])
    name = random_.choice(["x", 'a"b', "\\", '\\"[0,0]', "é"])

    found = read(text_of(array, random_), datatype, name)

    assert [each.name for each in found.message.inputs] == [name, 'y[1,2]"\\']
    assert found.message.id == "[1,[2],{"
    numbers, strings = found.raw_contents
    np.testing.assert_array_equal(np.frombuffer(numbers, array.dtype), array.ravel())
    assert strings == length_prefixed([b'[1,2,"\\', b"]}"])


def rows(count: int, row: str, last: str = "") -> str:
    return "[" + ",".join([row] * count + ([last] if last else [])) + "]"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (rows(COUNT // 2, "[1,2]", "[1]"), "nested unevenly"),
        (rows(COUNT // 2, "[1,2]", "[1,2,3]"), "nested unevenly"),
        (rows(COUNT // 2, "[1,2]", "3"), "nested unevenly"),
        (rows(COUNT // 2, "[1,2]", "[[1,2]]"), "nested unevenly"),
        ("[" * 200 + rows(COUNT, "1") + "]" * 200, "nested unevenly"),
        (rows(COUNT, "1", "null"), "no FP32"),
        (rows(COUNT, "1", "1e300"), "outside the range"),
        (rows(COUNT, "1", "1 2"), "not JSON"),
        (rows(COUNT, "1", "01"), "not JSON"),
        (rows(COUNT, "1", "+1"), "not JSON"),
        (rows(COUNT, "1", "nan"), "not JSON"),
        (rows(COUNT, "1", ","), "not JSON"),
        (rows(COUNT, "1") + "]", "nested unevenly"),
        ("[" + rows(COUNT, "1"), "nested unevenly"),  # a list without an end
        (rows(COUNT, "1")[:-1], "more than"),
        (rows(COUNT, "1")[:-1] + ",]", "not JSON"),
        (rows(COUNT // 2, "[1,2]").replace("[1,2]", "[1,2]3", 1), "not JSON"),
        (rows(COUNT // 2, "[1,2]").replace(",[", "[", 1), "nested unevenly"),
        (rows(COUNT, "[]"), "not JSON"),
    ],
)
def test_what_is_wrong_in_a_long_list_is_named(data: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read(data)


def test_long_lists_are_refused_where_other_things_belong() -> None:
    long = rows(COUNT, "1")

    with pytest.raises(InvalidTensor, match="no string"):
        read(long, "BYTES")
    with pytest.raises(InvalidTensor, match="no list of integers"):
        finished(read_request(body("[1]").replace(b"[1]", long.encode(), 1), None, "m", ""))
    text = b'{"inputs": [], "id": %s}' % long.encode()
    with pytest.raises(InvalidRequest, match="'id' of the request must be a string"):
        finished(read_request(text, None, "m", ""))


def test_a_stand_in_for_numbers_that_a_caller_writes_is_no_list() -> None:
    text = body(rows(COUNT, "1"))
    (key,) = finished(read_json(text)).numbers
    long = json.loads(text)
    long["inputs"].append({**long["inputs"][0], "data": {key: 0}})

    with pytest.raises(InvalidTensor, match="no list of elements"):
        finished(read_request(json.dumps(long).encode(), None, "m", ""))


@pytest.mark.parametrize(
    "text",
    [
        "[],",
        "{},",
        "[[],{}],",
        '{"a":1},',
        '"",',
        '"a",',
        "null,",
        "1," * 30 + "{},",
        '{"name":"x"},',
        "[" * 10_000,
    ],
)
@pytest.mark.parametrize("begin", ['{"inputs":[', '{"parameters":{"a":[', '{"inputs":[{"data":['])
def test_millions_of_parts_are_refused_before_objects_are_made_of_them(
    text: str, begin: str
) -> None:
    given = (begin + text * (LONG // len(text))).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"send tensors as binary data|not JSON"):
            finished(read_json(given))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 8 * len(given)


@pytest.mark.parametrize(
    ("text", "count"), [("1,", COUNT), ("[1],", COUNT), ("[1,2,3],", COUNT), ("NaN,", COUNT)]
)
def test_a_list_is_read_in_pieces_of_some_thousands(text: str, count: int) -> None:
    pieces = list(Numbers(f"[{text * count}0]".encode(), None).elements())

    assert max(map(len, pieces)) < 1 << 16
    assert sum(map(len, pieces)) == count * (text.count(",")) + 1


def test_strings_may_look_like_lists_of_numbers() -> None:
    numbers = "[1,2]," * (MAX_PARTS // 13)
    text = f'{{"a":{numbers}"\\\\"]}},' + numbers

    found = finished(read_json(json.dumps({"id": text, "b": [text]}).encode()))

    assert found.given == {"id": text, "b": [text]}


def test_what_is_long_and_simple_is_read() -> None:
    given: dict[str, Any] = {"parameters": {str(n): n for n in range(MAX_PARTS // 8)}}

    assert finished(read_json(json.dumps(given, indent=9).encode())).given == given


def written(datatype: str, raw: bytes | memoryview) -> tuple[list[Any], list[bytes]]:
    """The elements as Python reads them, and the pieces they were in."""
    pieces = list(texts_of("y", datatype, raw))
    return json.loads(b"[" + b"".join(pieces) + b"]"), pieces


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 3 * PIECE_ELEMENTS])
def test_numbers_are_the_same_afterwards(datatype: str, count: int) -> None:
    rng, dtype = np.random.default_rng(count), DTYPES[datatype]
    values = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    if datatype == "BOOL":
        values = rng.random(count) < 0.5

    found, pieces = written(datatype, memoryview(values.tobytes()))

    if dtype.kind in "biu":
        assert found == values.tolist()
    else:
        with np.errstate(invalid="ignore"):  # NaN of some bits
            wanted = values.astype(np.float64)
        np.testing.assert_array_equal(found, wanted)
    assert len(pieces) == -(-count // PIECE_ELEMENTS)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "FP16", "BF16"])
def test_what_is_no_finite_number_is_written_as_python_reads_it(datatype: str) -> None:
    values = np.array([1, np.nan, np.inf, -np.inf, -0.0, np.nan, 2.5], DTYPES[datatype])

    _, pieces = written(datatype, values.tobytes())

    assert pieces == [b"1.0,NaN,Infinity,-Infinity,-0.0,NaN,2.5"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["a", 'é"\\\n\0', "✈😀"],
        ["ab"] * (3 * PIECE_STRINGS + 1),
        ["é" * PIECE_TEXT_BYTES],
        ["a", "\0é😀" * PIECE_TEXT_BYTES, "", "b" * PIECE_TEXT_BYTES, "c"],
        ["a" * (PIECE_TEXT_BYTES - 1)] * 3,
    ],
    ids=lambda texts: f"{len(texts)} strings of {sum(map(len, texts))}",
)
def test_strings_are_the_same_afterwards(texts: list[str]) -> None:
    found, pieces = written("BYTES", length_prefixed(text.encode() for text in texts))

    assert found == texts
    assert max(map(len, pieces), default=0) <= 7 * PIECE_TEXT_BYTES  # each may become \\u0000


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3" + b"a" * PIECE_TEXT_BYTES, b"a\xed\xa0\x80"])
@pytest.mark.parametrize("before", [0, 2 * PIECE_STRINGS])
def test_bytes_that_are_no_text_are_refused(bad: bytes, before: int) -> None:
    with pytest.raises(InvalidRequest, match="output 'y' is no text; ask for it with"):
        written("BYTES", length_prefixed([b"a"] * before + [bad]))


@pytest.mark.parametrize(
    "data", [["a" * 100, *[""] * 50], [1.0, "2"], [[1.0, 2.0], ["3", 4.0]], [None], [{"a": 1}]]
)
def test_elements_that_are_no_numbers_are_refused_before_an_array_is_made(
    data: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(np, "array")  # of strings it would be as wide as the longest

    with pytest.raises(InvalidTensor, match=r"input 'x' has an element in 'data' that is no FP32"):
        finished(raw_of("x", "FP32", data))


FILE = "file:1/model.onnx"


def loaded(text: str) -> Any:
    """The file of a load whose JSON says this."""
    message = messages.RepositoryModelLoadRequest()
    finished(read_load({"parameters": {FILE: text}}, message))
    return message.parameters[FILE].bytes_param


@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE_BYTES * 3 // 4, PIECE_BYTES, PIECE_BYTES + 1])
def test_a_file_is_what_was_sent(size: int) -> None:
    data = random.Random(size).randbytes(size)

    assert loaded(base64.b64encode(data).decode()) == data


def test_a_large_file_is_decoded_in_pieces() -> None:
    given = {"parameters": {FILE: base64.b64encode(bytes(3 * PIECE_BYTES)).decode()}}

    assert sum(1 for _ in read_load(given, messages.RepositoryModelLoadRequest())) > 3


@pytest.mark.parametrize(
    "text",
    [
        *("***", "YQ", "YQ=", "YQ==YQ==", "=", "é", "Y Q=="),
        "A" * PIECE_BYTES + "YQ==" * 2,
        "A" * (PIECE_BYTES - 1) + "=AAAA",
        "A" * PIECE_BYTES + "A",
    ],
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{FILE}' is not base64"):
        loaded(text)
