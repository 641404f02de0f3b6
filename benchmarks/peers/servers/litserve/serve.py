"""LitServe around ``onnxruntime.InferenceSession``; bodies are bytes."""

import argparse
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import litserve
import numpy as np
import onnxruntime
from fastapi import Body, Response
from numpy.typing import NDArray

BATCH_WAIT_S = 0.002
"""Time for a batch to fill, once its first request is there."""
DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(int64)": np.dtype(np.int64),
}

Feeds = dict[str, NDArray[np.generic]]
Arrays = Sequence[NDArray[np.generic]]


class OnnxApi(litserve.LitAPI):  # type: ignore[misc]
    """A model whose requests are the bytes of its inputs, one after the other."""

    def __init__(self, model: str, threads: int, largest_batch: int) -> None:
        wait_s = BATCH_WAIT_S if largest_batch > 1 else 0.0
        super().__init__(max_batch_size=largest_batch, batch_timeout=wait_s, api_path="/infer")
        self.model, self.threads = model, threads

    def setup(self, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        self.session = onnxruntime.InferenceSession(self.model, options)

    def decode_request(self, request: Annotated[bytes, Body()]) -> Feeds:
        feeds, start = {}, 0
        for port in self.session.get_inputs():
            shape, dtype = (1, *port.shape[1:]), DTYPES[port.type]
            count = int(np.prod(shape))
            feeds[port.name] = np.frombuffer(request, dtype, count, start).reshape(shape)
            start += count * dtype.itemsize
        return feeds

    def batch(self, inputs: list[Feeds]) -> Feeds:
        return {name: np.concatenate([feeds[name] for feeds in inputs]) for name in inputs[0]}

    def predict(self, x: Feeds) -> Arrays:
        arrays: Arrays = self.session.run(None, x)
        return arrays

    def unbatch(self, output: Arrays) -> list[Arrays]:
        return [[array[row] for array in output] for row in range(len(output[0]))]

    def encode_response(self, output: Arrays) -> Response:
        return Response(b"".join(array.tobytes() for array in output))


def say_when_ready(port: int) -> None:
    """Print READY once every worker has set up its session."""
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/health").close()
        except URLError:
            time.sleep(0.05)
        else:
            return print("READY", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker-per-thread", action="store_true")
    given = parser.parse_args()
    workers = given.threads if given.worker_per_thread else 1
    largest = max(int(size) for size in given.batch_sizes.split(","))
    api = OnnxApi(given.model, given.threads // workers, largest)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, fast_queue=True)
    threading.Thread(target=say_when_ready, args=[given.port], daemon=True).start()
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False)


if __name__ == "__main__":
    main()
