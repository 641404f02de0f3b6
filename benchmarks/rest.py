"""REST with binary tensors against a bare uvicorn echo of the same bytes, with tritonclient.http.

    python -m benchmarks.rest [--bytes 602112] [--rounds 7] [--calls 200] [--json FILE]

Both servers run from the beginning to the end; the client calls them in turns, one call at a time.
The model doubles its input: its answer is as long as its input, and little is computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton

from benchmarks.environment import describe
from benchmarks.load.children import free_ports, read_line, running
from benchmarks.load.processes import braid_server
from benchmarks.networks.one_operator import write_scaled
from benchmarks.reports import write_report
from benchmarks.states import add_state, by_state, in_state

WARM_UP = 50


def serve_echo() -> None:
    """Serve one answer for all requests: the binary tensor that came, as the output ``y``."""
    import uvicorn

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body += part["body"]
            more = part["more_body"]
        head_bytes = int(dict(scope["headers"])[b"inference-header-content-length"])
        tensor = body[head_bytes:]
        shape, size = [1, len(tensor) // 4], {"binary_data_size": len(tensor)}
        output = {"name": "y", "datatype": "FP32", "shape": shape, "parameters": size}
        head = json.dumps({"model_name": "echo", "outputs": [output]}).encode()
        headers = [
            (b"inference-header-content-length", str(len(head)).encode()),
            (b"content-length", str(len(head) + len(tensor)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": head + tensor})

    (port,) = free_ports(1)
    print(port, flush=True)
    uvicorn.run(echo, port=port, log_level="critical", http="httptools", loop="uvloop")


def p50_us(client: triton.InferenceServerClient, x: np.ndarray, calls: int) -> float:
    took = []
    for _ in range(calls):
        began = time.perf_counter_ns()
        given = triton.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        client.infer("doubling", [given]).as_numpy("y")
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1000


def compare(sizes: list[int], rounds: int, calls: int, state: str) -> list[dict[str, float]]:
    """Return a row for each size in bytes: medians over rounds, and their ratio."""
    rows = []
    for size in sizes:
        columns = size // 4
        x = np.ones((1, columns), np.float32)
        with (
            tempfile.TemporaryDirectory() as name,
            running(
                [sys.executable, "-u", "-c", "from benchmarks.rest import serve_echo; serve_echo()"]
            ) as process,
        ):
            echo = triton.InferenceServerClient(f"127.0.0.1:{read_line(process).strip()}")
            model = write_scaled(Path(name) / "doubling.onnx", [columns], 2.0)
            with braid_server(Path(name) / "store") as server:
                server.client.register(model.stem, model, wait=True, timeout_s=120.0)
                served = triton.InferenceServerClient(f"127.0.0.1:{server.http_port}")
                for client in (echo, served):
                    p50_us(client, x, WARM_UP)
                hold = partial(p50s_us, (echo, served), x, calls)
                pairs = [in_state(state, hold) for _ in range(rounds)]
        echo_us, braid_us = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(braid / bare for bare, braid in pairs)
        rows.append({"bytes": size, "echo_us": echo_us, "braid_us": braid_us, "ratio": ratio})
    return rows


def p50s_us(
    clients: Sequence[triton.InferenceServerClient], x: np.ndarray, calls: int
) -> list[float]:
    return [p50_us(client, x, calls) for client in clients]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096, 602_112])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path)
    add_state(parser)
    return by_state(parser.parse_args(), _run)


def _run(args: argparse.Namespace) -> int:
    environment = describe("uvicorn", "httptools", "uvloop", "starlette", "tritonclient")
    rows = compare(args.bytes, args.rounds, args.calls, args.state)
    print(f"{'bytes':>10} {'echo p50 us':>12} {'braid p50 us':>13} {'ratio':>6}")
    for row in rows:
        print("{bytes:>10} {echo_us:>12.0f} {braid_us:>13.0f} {ratio:>6.2f}".format(**row))
    write_report(args.json, {"environment": environment, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
