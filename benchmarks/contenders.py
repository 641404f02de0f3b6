"""One way to run a network, alone in its process: ``python -m benchmarks.contenders``.

Started by ``benchmarks.engine``. Prints ``ready`` when it is warm; then, for each number read from
its input, runs the network that many times after one run that does not count, and prints the
milliseconds as a JSON list.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns

import torch

from benchmarks.networks.network import Network
from benchmarks.networks.registry import NETWORKS, arrays_of, inputs_of
from braid.core.plan import plan_from_json
from braid.core.precision import BF16, FP32, PRECISIONS
from braid.core.program import PlanToRun, ProgramKey, sorted_choices
from braid.core.runtimes import ONNXRUNTIME, RUNTIMES
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.device import open_whole
from braid.engine.importer.host.report import read_report
from braid.engine.ops import dtypes
from braid.engine.ops.dtypes import spec_of
from braid.engine.runtime.memory import keep_freed_memory
from braid.engine.runtime.threads import usable_cpus
from braid.engine.worker.models import ModelTable

Run = Callable[[], object]

WARM_UPS = 3

_OPENVINO_TYPES = {FP32: "f32", "fp16": "f16", BF16: "bf16"}


def torch_eager(network: Network, args: argparse.Namespace) -> Run:
    torch.set_num_threads(args.threads)
    model, inputs = network.build(), network.example_inputs(args.batch)
    return lambda: model(*inputs)


def torch_compile(network: Network, args: argparse.Namespace) -> Run:
    import torch._inductor.config as inductor

    torch.set_num_threads(args.threads)
    inductor.freezing = True
    compiled = torch.compile(network.build())
    inputs = network.example_inputs(args.batch)
    return lambda: compiled(*inputs)


def onnxruntime_sequential(network: Network, args: argparse.Namespace) -> Run:
    return _session(network, args, parallel=False)


def onnxruntime_parallel(network: Network, args: argparse.Namespace) -> Run:
    """A session that runs independent operators side by side."""
    return _session(network, args, parallel=True)


def _session(network: Network, args: argparse.Namespace, *, parallel: bool) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    if parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(
        str(args.model), options, providers=["CPUExecutionProvider"]
    )
    feeds = arrays_of(network, args.batch)
    return lambda: session.run(None, feeds)


def openvino(network: Network, args: argparse.Namespace) -> Run:
    """OpenVINO, compiled for these shapes, with default settings otherwise."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(args.model))
    feeds = arrays_of(network, args.batch)
    model.reshape({name: list(feed.shape) for name, feed in feeds.items()})
    properties = {
        "INFERENCE_PRECISION_HINT": _OPENVINO_TYPES[args.precision],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": args.threads,
    }
    request = core.compile_model(model, "CPU", properties).create_infer_request()
    return lambda: request.infer(feeds)


def braid(network: Network, args: argparse.Namespace) -> Run:
    """A plan as the device worker runs it, or the runtime that runs instead."""
    keep_freed_memory()
    cpus = usable_cpus()[: args.threads]
    inputs = inputs_of(network, args.batch)
    arrays = dtypes.arrays_of(inputs)
    digest = read_report(args.artefact).sha256
    if args.plan is None:
        backend = CpuBackend(CpuExecutor(args.threads, cpus))
        where = backend, args.runtime, args.artefact, digest
        whole = open_whole(*where, precision=args.precision)
        return lambda: whole.run(arrays)
    table = ModelTable(CpuBackend(CpuExecutor(args.threads, cpus)))
    table.load(digest, args.artefact)
    specs = tuple((name, spec_of(tensor)) for name, tensor in inputs.items())
    choices = sorted_choices(json.loads(args.kernels))
    key = ProgramKey(digest, specs, precision=args.precision, choices=choices)
    plan = plan_from_json(json.loads(args.plan.read_text()))
    ready = table.executable_of(PlanToRun(key, plan), None).prepared
    return lambda: ready.run(arrays)


OTHERS: Mapping[str, Callable[[Network, argparse.Namespace], Run]] = {
    "torch-eager": torch_eager,
    "torch-compile": torch_compile,
    "onnxruntime-sequential": onnxruntime_sequential,
    "onnxruntime-parallel": onnxruntime_parallel,
    "openvino": openvino,
}
"""What a user would pick instead."""


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--contender", required=True, help=f"braid, or {', '.join(OTHERS)}")
    parser.add_argument("--model", type=Path, required=True, help="the network as ONNX")
    parser.add_argument("--artefact", type=Path, required=True, help="the network as imported")
    parser.add_argument("--plan", type=Path, help="JSON; without it, braid runs --runtime")
    parser.add_argument("--kernels", default="{}", help="JSON: signature of a unit -> variant")
    parser.add_argument("--precision", choices=PRECISIONS, default=FP32)
    parser.add_argument("--runtime", choices=RUNTIMES, default=ONNXRUNTIME)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of compilers, about things that nobody here can change
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    run = OTHERS.get(args.contender, braid)(NETWORKS[args.network], args)
    for _ in range(WARM_UPS):
        run()
    answers.write("ready\n")
    for line in sys.stdin:
        answers.write(json.dumps(_timed(run, int(line))) + "\n")


def _timed(run: Run, count: int) -> list[float]:
    run()
    samples = []
    for _ in range(count):
        start = perf_counter_ns()
        run()
        samples.append((perf_counter_ns() - start) / 1e6)
    return samples


if __name__ == "__main__":
    main()
