"""Bad requests to infer, each sent through every door that can express it (``doors``).

All doors refuse one with the same kind of error, in the same words but for those that are a door's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from braid.core.strings import MAX_STRINGS
from tests.attack.messages.doors import MISSING, NOT_OFFERED, ROW, Bad, Input, Output
from tests.attack.target import TEXT, VALUES

MEGABYTE = "m" * (1 << 20)
BEYOND = 1 << 62
MOST, LEAST = (1 << 63) - 1, -(1 << 63)
FLOATS = {"fp32_contents": [0.0, 1.0, 2.0]}
REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


def text(words: str, *elements: bytes, shape: Sequence[int] = (1, 2)) -> Bad:
    """Strings with their lengths, for the model that takes two in each row."""
    return Bad(["'x'", words], [Input(shape, b"".join(elements), "BYTES")], model=TEXT)


def texts(words: str, elements: Any) -> Bad:
    return Bad([words], [Input((1, 2), dtype="BYTES", elements=elements)], model=TEXT)


def values(
    *words: str,
    ids: Sequence[int] = (0, 1, 2, 9),
    length: int = 4,
    by: Sequence[int] = (1, 2, -1, 3),
) -> Bad:
    """One row of the model that takes indices, lengths and divisors."""
    given = {"ids": ((1, 4), ids), "lengths": ((1,), [length]), "by": ((1, 4), by)}
    inputs = [
        Input(shape, np.array(numbers, "<i8").tobytes(), "INT64", name)
        for name, (shape, numbers) in given.items()
    ]
    return Bad(words, inputs, model=VALUES)


def elements(words: str, data: Any, dtype: str = "FP32", **more: Any) -> Bad:
    return Bad([words], [Input(dtype=dtype, elements=data)], **more)


def typed(words: str, contents: Mapping[str, Any], dtype: str = "FP32", **more: Any) -> Bad:
    return Bad([words, "'x'"], [Input(dtype=dtype, typed=contents)], **more)


def placed(words: str, **parameters: Any) -> Bad:
    """An input that lies elsewhere."""
    return Bad([words], [Input(data=None, parameters=parameters)])


def wanted(words: str, **parameters: Any) -> Bad:
    return Bad([words], outputs=[Output(parameters=parameters)])


def asked(words: str, **parameters: Any) -> Bad:
    return Bad([words], parameters=parameters)


def unknown(words: str, **fields: Any) -> Bad:
    return Bad([words], status=MISSING, **fields)


def _length(size: int) -> bytes:
    return size.to_bytes(4, "little")


A = _length(1) + b"a"
GONE = {REGION: "gone", SIZE: 12}

INPUTS: Mapping[str, Bad] = {
    "no inputs": Bad(["missing input(s) x", "FP32[batch, 3]"], []),
    "an unknown input": Bad(["no input 'z'", "its inputs: x"], [Input(name="z")]),
    "an input twice": Bad(["'x' is given twice"], [Input(), Input()]),
    "an input a thousand times": Bad(["twice"], [Input()] * 1000),
    "a further input": Bad(["no input 'further'"], [Input(), Input(name="further")]),
    "a second input without a name": Bad(
        ["say which input is meant", "x FP32"], [Input(), Input(name="")]
    ),
    "two inputs without a name": Bad(["say which input is meant"], [Input(name="")] * 2),
    "a name of a megabyte": Bad(["no input 'nnn"], [Input(name="n" * (1 << 20))]),
    "a name of controls": Bad([r"\r\n\x1b[2J\x00"], [Input(name="a\r\n\x1b[2J\x00")]),
    "no datatype": Bad(["dtype ''", "FP32"], [Input(dtype="")]),
    "another datatype": Bad(["'INT32'", "FP32"], [Input(dtype="INT32")]),
    "an unknown datatype": Bad(["'FLOAT'", "FP32"], [Input(dtype="FLOAT")]),
    "a datatype in small letters": Bad(["'fp32'", "FP32"], [Input(dtype="fp32")]),
    "a datatype of a megabyte": Bad(["dtype 'FFF"], [Input(dtype="F" * (1 << 20))]),
    "strings for numbers": Bad(["'BYTES'", "FP32"], [Input(dtype="BYTES")]),
    "no shape": Bad(["rank 0"], [Input(())]),
    "a shape without the batch": Bad(["rank 1"], [Input((3,))]),
    "a shape of three": Bad(["rank 3"], [Input((1, 1, 3))]),
    "a shape of 100,000": Bad(["rank 100000"], [Input((1,) * 100_000)]),
    "another extent": Bad(["axis 1 must be 3"], [Input((1, 4), ROW + ROW[:4])]),
    "a negative extent": Bad(["extent -1 at axis 0", "at least 0"], [Input((-1, 3))]),
    "two negative extents": Bad(["extent -1 at axis 0"], [Input((-1, -3))]),
    "the least extent": Bad(["at least 0"], [Input((LEAST, 3))]),
    "the largest extent": Bad(["12 bytes of data"], [Input((MOST, 3))]),
    "an extent that overflows": Bad(["12 bytes of data"], [Input((BEYOND, 3))]),
    "an extent whose bytes are 0 in 64 bits": Bad(["0 bytes"], [Input((BEYOND, 3), b"")]),
    "too few bytes": Bad(["11 bytes of data", "takes 12"], [Input(data=ROW[:11])]),
    "too many bytes": Bad(["13 bytes of data", "takes 12"], [Input(data=ROW + b"!")]),
    "no bytes": Bad(["0 bytes of data", "takes 12"], [Input(data=b"")]),
    "fewer rows than it says": Bad(["12 bytes of data", "takes 12000"], [Input((1000, 3))]),
    "no contents": Bad(["0 bytes of data"], [Input(data=None)], rest_words=["neither 'data' nor"]),
    # Strings.
    "a string without a length": text("ends within the length of element 0", b"ab"),
    "a string that ends in a length": text("ends within the length of element 1", A, A[:2]),
    "a string that is longer": text("has the length 9 before", _length(9), b"abc", _length(0)),
    "a string of four gigabytes": text(
        "has the length 4294967295 before element 0, but 1 bytes", _length((1 << 32) - 1), b"a"
    ),
    "one string too few": text("has 1 strings; its shape takes 2", A),
    "one string too many": text("more than the 2 strings", A, A, A),
    "a string that is no text": text("no UTF-8 in element 0", _length(2), b"\xff\xfe", bytes(4)),
    "a string cut in a letter": text("no UTF-8 in element 0", _length(2), b"\xc3\x28", bytes(4)),
    "half of a pair": text("no UTF-8 in element 0", _length(3), b"\xed\xa0\x80", bytes(4)),
    "another extent of strings": text("axis 1 must be 2", bytes(8), shape=(1, 3)),
    "strings beyond all numbers": text("'x'", shape=(BEYOND, 2)),
    "too many strings": text(f"a request may have {MAX_STRINGS}", bytes(8), shape=(MAX_STRINGS, 2)),
    "a million empty strings": text("'x'", bytes(8 << 20), shape=(1 << 20, 2)),
    "one element too few": texts("has 1 strings", ["a"]),
    "a number among strings": texts("no string", ["a", 1]),
    "half of a pair as an element": texts("surrogate", ["a", "\ud800"]),
    "a word for strings": Bad(["no list"], [Input(dtype="BYTES", elements="ab")], doors=["rest"]),
    "an element for numbers": elements("has dtype 'BYTES'", ["ab"], "BYTES"),
    "a number as a string": elements("no string", [1], "BYTES"),
    # Numbers that an operator cannot take.
    "an index beyond": values("'look_up'", "the index 10;", ids=(0, 10, 0, 0)),
    "an index before": values("'look_up'", "the index -11;", ids=(0, -11, 0, 0)),
    "the largest index": values("'look_up'", f"index {MOST};", ids=(MOST,) * 4),
    "the least index": values("'look_up'", f"index {LEAST};", ids=(LEAST,) * 4),
    "a length beyond": values("'turn'", "the length 5; it takes 0 to 4", length=5),
    "a negative length": values("'turn'", "the length -1;", length=-1),
    "the largest length": values("'turn'", f"length {MOST};", length=MOST),
    "a divisor of 0": values("'divide'", "the divisor 0;", by=(1, 0, 1, 1)),
    # Elements one by one.
    "too few elements": elements("8 bytes of data", [0, 1]),
    "too many elements": elements("400000 bytes of data", [1.0] * 100_000),
    "elements beyond all numbers": Bad(
        ["12 bytes of data"], [Input((BEYOND, 3), elements=[0, 1, 2])]
    ),
    "elements of another datatype": elements("has dtype 'FP64'", [1, 2, 3], "FP64"),
    "elements of an unknown datatype": elements("unknown datatype 'float'", [0, 1, 2], "float"),
    "an INT8 of 128": elements("the range of INT8", [128, 1, 2], "INT8"),
    "a UINT8 of 256": elements("the range of UINT8", [256], "UINT8"),
    "a fraction for INT8": elements("no INT8", [0.5, 1, 2], "INT8"),
    "an INT64 of 2^80": elements("no INT64", [1 << 80, 1, 2], "INT64"),
    "an element beyond FP32": elements("outside the range of FP32", [1e300, 0, 0], doors=["rest"]),
    "truths in data": elements("no FP32", [True, False, True], doors=["rest"]),
    "words in data": elements("no FP32", ["0", "1", "2"]),
    "nothing in data": elements("no FP32", [None, 1, 2]),
    "objects in data": elements("no FP32", [{}, 1, 2]),
    "ragged data": elements("nested unevenly", [[0, 1], [2]]),
    "a word for data": elements("no list of elements", "012"),
    "a number for data": elements("no list of elements", 7),
    # Contents of the protocol beside each other.
    "two contents for one input": Bad(["2 entries for 1 inputs"], raw=[ROW, ROW]),
    "one content for two inputs": Bad(
        ["1 entries for 2 inputs"], [Input(name="a"), Input(name="b")], raw=[ROW]
    ),
    "ten thousand contents": Bad(["10000 entries for 1 inputs"], raw=[b""] * 10_000),
    "contents for no input": Bad(["1 entries for 0 inputs"], [], raw=[ROW]),
    "raw and typed contents": typed("typed contents beside", FLOATS, raw=[ROW]),
    "typed as another": typed("belong in fp32_contents", {"int_contents": [1, 2, 3]}),
    "typed as two": typed("belong in fp32_contents", {**FLOATS, "int_contents": [1]}),
    "typed FP16": typed(
        "'FP16' has no typed contents; send it in raw_input_contents", FLOATS, "FP16"
    ),
    "typed BF16": typed("'BF16' has no typed contents", FLOATS, "BF16"),
    "typed without a datatype": typed("'' has no typed contents", FLOATS, ""),
    "typed of a megabyte": typed("input 'x' of datatype 'mmm", FLOATS, MEGABYTE),
}

FIELDS: Mapping[str, Bad] = {
    "no model": unknown("no model named ''", model=""),
    "an unknown model": Bad(
        ["no model named 'nobody'", "braid models"], status=MISSING, model="nobody"
    ),
    "a path for a model": unknown("no model named", model="../../etc/passwd"),
    "a model of a megabyte": unknown("no model named 'mmm", model=MEGABYTE),
    "a model of controls": unknown(r"a\n\x1b\x00", model="a\n\x1b\x00"),
    "version 0": unknown("no version '0'", version="0"),
    "version -1": unknown("no version '-1'", version="-1"),
    "version 7": unknown("no version '7'; versions: 1", version="7"),
    "a version beyond 64 bits": unknown("no version '999", version="9" * 30),
    "a version of a megabyte": unknown("no version '111", version="1" * (1 << 20)),
    "a version in other digits": unknown("no version", version="\u0661"),
    "a version with a sign": unknown("no version '+1'", version="+1"),
    "a version with a space": unknown("no version ' 1'", version=" 1"),
    "a version with a point": unknown("no version '1.0'", version="1.0"),
    "a label that is none": unknown("no version 'latest'", version="latest"),
    "a path for a version": unknown("no version '../1'", version="../1"),
    "a request id of 129 bytes": Bad(["longer than 128 bytes"], id="a" + "é" * 64),
    "a request id of a megabyte": Bad(["longer than 128 bytes"], id=MEGABYTE),
    "half of a pair for an id": Bad(["surrogate"], id="\ud800", doors=["rest"]),
    "an unknown output": Bad(["no output 'z'"], outputs=[Output("z")]),
    "an output without a name": Bad(["no output ''"], outputs=[Output("")]),
    "an output of a megabyte": Bad(["no output 'mmm"], outputs=[Output(MEGABYTE)]),
    "a hundred thousand outputs": Bad(
        ["no output 'z'"], outputs=[Output("z")] * 100_000, doors=["braid"]
    ),
    "an output twice": Bad(["requested twice"], outputs=[Output()] * 2, doors=["oip", "rest"]),
    "-1 classes": wanted("'classification' is -1; it lies between", classification=-1),
    "2^62 classes": wanted("'classification' is 4611", classification=BEYOND),
    "a word for classes": wanted("must be an integer", classification="all"),
    "truth for classes": wanted("must be an integer", classification=True),
    "classes to nowhere": wanted("classification", classification=1, **GONE),
    "a number for a region": placed("must name a registered region", **{REGION: 7, SIZE: 12}),
    "no name of a region": placed("must name a registered region", **{REGION: "", SIZE: 12}),
    "a region without a size": placed(f"'{SIZE}' is missing beside", **{REGION: "gone"}),
    "a size without a region": Bad(
        [f"'{REGION}' must name a registered"],
        [Input(data=None, parameters={SIZE: 12})],
        rest_words=["neither 'data' nor"],
    ),
    "a region of -1": placed(f"'{SIZE}' is -1", **{REGION: "gone", SIZE: -1}),
    "a region of 2^63": placed(f"'{SIZE}' is 9223", **{REGION: "gone", SIZE: MOST}),
    "a region before its begin": placed(f"'{OFFSET}' is -1", **{REGION: "g", SIZE: 1, OFFSET: -1}),
    "a region that is gone": unknown("'gone'", inputs=[Input(data=None, parameters=GONE)]),
    "an output to a region that is gone": unknown("'gone'", outputs=[Output("y", GONE)]),
    "priority 11": Bad(
        ["'priority' is 11; it lies between 0 and 10"],
        parameters={"priority": 11},
        braid_words=["priority 11"],
    ),
    "priority -1": Bad(
        ["'priority' is -1"], parameters={"priority": -1}, braid_words=["priority -1"]
    ),
    "priority -2^31": Bad(
        ["'priority' is -21474"], parameters={"priority": -(1 << 31)}, braid_words=["-2147483648"]
    ),
    "2^80 for a priority": asked("'priority' must be an integer", priority=1 << 80),
    "priority as a word": asked("'priority' must be an integer", priority="high"),
    "a timeout of -1": Bad(
        ["'timeout' is -1"], parameters={"timeout": -1}, braid_words=["timeout"]
    ),
    "a timeout of 2^63": Bad(  # as long as braid.v1 takes one
        ["'timeout' is 9223"], parameters={"timeout": MOST}, doors=["oip", "rest"]
    ),
    "a timeout of 2^60": Bad(
        ["'timeout' is 1152"], parameters={"timeout": 1 << 60}, doors=["oip", "rest"]
    ),
    "a truth for a timeout": asked("'timeout' must be an integer", timeout=True),
    "a word for a timeout": asked("'timeout' must be an integer", timeout="x"),
    "a reserved parameter": asked("'triton_x' is reserved", triton_x=1),
    "a header": asked("'headers' is reserved", headers="x"),
    "a sequence": Bad(["models with state"], status=NOT_OFFERED, parameters={"sequence_id": 7}),
    "a sequence by name": Bad(
        ["models with state"], status=NOT_OFFERED, parameters={"sequence_id": "s"}
    ),
}

BAD: Mapping[str, Bad] = {**INPUTS, **FIELDS}
