"""Mistakes about the inputs of one request, each sent through every protocol that takes tensors.

    Inputs ──calls_of──> Infer, InferStream, ModelInfer, ModelStreamInfer (raw contents)
       └──requests_of──> REST with binary tensors

All of these must refuse it in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tritonclient.grpc import service_pb2 as oip

from braid_client.wire import inference_pb2
from tests.attack.messages.grpc_calls import BRAID, IN_STREAM, OIP, GrpcCall
from tests.attack.messages.http_requests import HttpRequest, post
from tests.attack.target import PREY, TEXT, VALUES

ROW = np.arange(3, dtype="<f4").tobytes()
BEYOND = 1 << 62
MOST, LEAST = (1 << 63) - 1, -(1 << 63)


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it is sent."""

    shape: Sequence[int] = (1, 3)
    data: bytes = ROW
    dtype: str = "FP32"
    name: str = "x"


@dataclass(frozen=True, slots=True)
class Mistake:
    """Inputs that are refused as INVALID_ARGUMENT, and words of the refusal."""

    inputs: Sequence[Input]
    words: Sequence[str]
    model: str = PREY


def _text(data: bytes, shape: Sequence[int] = (1, 2)) -> Sequence[Input]:
    return [Input(shape, data, "BYTES")]


def _values(
    ids: Sequence[int] = (0, 1, 2, 9), length: int = 4, by: Sequence[int] = (1, 2, -1, 3)
) -> Sequence[Input]:
    """One row of the model that takes indices, lengths and divisors."""
    given = {"ids": ((1, 4), ids), "lengths": ((1,), [length]), "by": ((1, 4), by)}
    return [
        Input(shape, np.array(numbers, "<i8").tobytes(), "INT64", name)
        for name, (shape, numbers) in given.items()
    ]


def _length(size: int) -> bytes:
    return size.to_bytes(4, "little")


MISTAKES: Mapping[str, Mistake] = {
    "no inputs": Mistake([], ["missing input(s) x"]),
    "an unknown input": Mistake([Input(name="z")], ["no input 'z'"]),
    "an input twice": Mistake([Input(), Input()], ["'x' is given twice"]),
    "an input a thousand times": Mistake([Input()] * 1000, ["twice"]),
    "a further input": Mistake([Input(), Input(name="further")], ["no input 'further'"]),
    "two inputs without a name": Mistake([Input(name="")] * 2, ["say which input is meant"]),
    "a name of a megabyte": Mistake([Input(name="n" * (1 << 20))], ["no input 'nnn"]),
    "a name of controls": Mistake([Input(name="a\r\n\x1b[2J\x00")], [r"\r\n\x1b[2J\x00"]),
    "no datatype": Mistake([Input(dtype="")], ["dtype ''", "FP32"]),
    "another datatype": Mistake([Input(dtype="INT32")], ["'INT32'", "FP32"]),
    "a datatype in small letters": Mistake([Input(dtype="fp32")], ["'fp32'", "FP32"]),
    "a datatype of a megabyte": Mistake([Input(dtype="F" * (1 << 20))], ["dtype 'FFF"]),
    "strings for numbers": Mistake([Input(dtype="BYTES")], ["'BYTES'", "FP32"]),
    "no shape": Mistake([Input(())], ["rank 0"]),
    "a shape without the batch": Mistake([Input((3,))], ["rank 1"]),
    "a shape of three": Mistake([Input((1, 1, 3))], ["rank 3"]),
    "a shape of 100,000": Mistake([Input((1,) * 100_000)], ["rank 100000"]),
    "another extent": Mistake([Input((1, 4), ROW + ROW[:4])], ["axis 1 must be 3"]),
    "no rows": Mistake([Input((0, 3), b"")], ["extent 0 at axis 0"]),
    "a negative extent": Mistake([Input((-1, 3))], ["extent -1 at axis 0"]),
    "two negative extents": Mistake([Input((-1, -3))], ["extent -1 at axis 0"]),
    "the least extent": Mistake([Input((-(1 << 63), 3))], ["at least 1"]),
    "the largest extent": Mistake([Input(((1 << 63) - 1, 3))], ["12 bytes of data"]),
    "an extent that overflows": Mistake([Input((BEYOND, 3))], ["12 bytes of data"]),
    "an extent whose bytes are 0 in 64 bits": Mistake([Input((1 << 62, 3), b"")], ["0 bytes"]),
    "too few bytes": Mistake([Input(data=ROW[:11])], ["11 bytes of data", "takes 12"]),
    "too many bytes": Mistake([Input(data=ROW + b"!")], ["13 bytes of data", "takes 12"]),
    "no bytes": Mistake([Input(data=b"")], ["0 bytes of data", "takes 12"]),
    "fewer rows than it says": Mistake([Input((1000, 3))], ["12 bytes of data", "takes 12000"]),
    "a string without a length": Mistake(_text(b"ab"), ["'x'"], TEXT),
    "a string that is longer": Mistake(_text(_length(9) + b"abc" + _length(0)), ["'x'"], TEXT),
    "a string of four gigabytes": Mistake(_text(_length((1 << 32) - 1) + b"a"), ["'x'"], TEXT),
    "one string too few": Mistake(_text(_length(1) + b"a"), ["'x'"], TEXT),
    "one string too many": Mistake(_text((_length(1) + b"a") * 3), ["'x'"], TEXT),
    "a string that is no text": Mistake(_text((_length(2) + b"\xff\xfe") * 2), ["'x'"], TEXT),
    "strings beyond all numbers": Mistake(_text(b"", (BEYOND, 2)), ["'x'"], TEXT),
    "an index beyond": Mistake(_values(ids=(0, 10, 0, 0)), ["'look_up'", "the index 10;"], VALUES),
    "an index before": Mistake(
        _values(ids=(0, -11, 0, 0)), ["'look_up'", "the index -11;"], VALUES
    ),
    "the largest index": Mistake(_values(ids=(MOST,) * 4), ["'look_up'", f"index {MOST};"], VALUES),
    "the least index": Mistake(_values(ids=(LEAST,) * 4), ["'look_up'", f"index {LEAST};"], VALUES),
    "a length beyond": Mistake(
        _values(length=5), ["'turn'", "the length 5; it takes 0 to 4"], VALUES
    ),
    "a negative length": Mistake(_values(length=-1), ["'turn'", "the length -1;"], VALUES),
    "the largest length": Mistake(_values(length=MOST), ["'turn'", f"length {MOST};"], VALUES),
    "a divisor of 0": Mistake(_values(by=(1, 0, 1, 1)), ["'divide'", "the divisor 0;"], VALUES),
    "a million empty strings": Mistake(_text(bytes(8 << 20), (1 << 20, 2)), ["'x'"], TEXT),
}


def calls_of(mistake: Mistake) -> Iterator[GrpcCall]:
    """Yield the calls that make a mistake."""
    own = inference_pb2.InferRequest(
        model=mistake.model,
        inputs=[
            inference_pb2.Tensor(name=x.name, dtype=x.dtype, shape=x.shape, data=x.data)
            for x in mistake.inputs
        ],
    )
    other = oip.ModelInferRequest(
        model_name=mistake.model,
        inputs=[
            oip.ModelInferRequest.InferInputTensor(name=x.name, datatype=x.dtype, shape=x.shape)
            for x in mistake.inputs
        ],
        raw_input_contents=[x.data for x in mistake.inputs],
    )
    for method, message, status in (
        (f"{BRAID}Infer", own, "INVALID_ARGUMENT"),
        (f"{BRAID}InferStream", own, "INVALID_ARGUMENT"),
        (f"{OIP}ModelInfer", other, "INVALID_ARGUMENT"),
        (f"{OIP}ModelStreamInfer", other, IN_STREAM),
    ):
        yield GrpcCall(method, [message], status, mistake.words)


def request_of(mistake: Mistake) -> HttpRequest:
    """Return the same as a request of REST, tensors as binary data."""
    inputs = [
        {
            "name": x.name,
            "datatype": x.dtype,
            "shape": list(x.shape),
            "parameters": {"binary_data_size": len(x.data)},
        }
        for x in mistake.inputs
    ]
    head = json.dumps({"inputs": inputs}).encode()
    body = head + b"".join(x.data for x in mistake.inputs)
    length = {"Inference-Header-Content-Length": str(len(head))}
    return post(f"/v2/models/{mistake.model}/infer", body, 400, mistake.words, **length)
