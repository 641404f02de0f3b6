"""Services of BentoML around ``onnxruntime.InferenceSession``; bodies are bytes.

A method whose calls can be batched takes a list, which from a request has to be a list in JSON;
``Bodies`` makes one of a body. The manual's other way, a service of batches behind the one that is
asked, loses requests in 1.4.39: its client closes its connections after 100 requests, those in use
too ("Server disconnected").
"""

import os
from typing import Any

import bentoml
import numpy as np
import onnxruntime
from _bentoml_sdk.io_models import IORootModel
from starlette.requests import Request
from starlette.responses import Response

DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(int64)": np.dtype(np.int64),
}
QUIET = {"logging": {"access": {"enabled": False}}, "metrics": {"enabled": False}}


class Session:
    """The model at ``MODEL``."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["THREADS"])
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options)

    def answer(self, bodies: list[bytes]) -> list[bytes]:
        """Run the session once: each body the inputs of one row, each answer its outputs."""
        feeds, start = {}, 0
        for port in self.session.get_inputs():
            shape, dtype = (1, *port.shape[1:]), DTYPES[port.type]
            count = int(np.prod(shape))
            rows = [np.frombuffer(body, dtype, count, start).reshape(shape) for body in bodies]
            feeds[port.name] = rows[0] if len(rows) == 1 else np.concatenate(rows)
            start += count * dtype.itemsize
        arrays = self.session.run(None, feeds)
        return [b"".join(array[n].tobytes() for array in arrays) for n in range(len(bodies))]


class Bodies(IORootModel[list[bytes]]):  # type: ignore[misc]
    """Bodies of requests or of answers; a list of one outside a batch."""

    __root_input__ = True

    @classmethod
    async def from_http_request(cls, request: Request, serde: object) -> "Bodies":
        return cls([await request.body()])

    @classmethod
    async def to_http_response(cls, obj: list[bytes], serde: object) -> Response:
        return Response(obj[0])


@bentoml.service(workers=1, **QUIET)
class Onnx(Session):
    """One run for each request."""

    @bentoml.api(route="/infer")
    def infer(self, body: bytes, /) -> bytes:
        return self.answer([body])[0]


@bentoml.service(workers=1, **QUIET)
class Batched(Session):
    """One run for the requests that wait together."""

    @bentoml.api(
        route="/infer",
        batchable=True,
        max_batch_size=int(os.environ["LARGEST_BATCH"]),
        input_spec=Bodies,
        output_spec=Bodies,
    )
    def infer(self, bodies: list[bytes]) -> list[bytes]:
        return self.answer(bodies)
