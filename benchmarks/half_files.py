"""Files of FP16 and BF16 (exports after ``.half()``): what serves, beside other runtimes.

    python -m benchmarks.half_files --json benchmarks/results/half_files.json
    python -m benchmarks.half_files cnn lstm --types bf16

    module ──.half()──> ONNX file ──┬──> braid.compile ──> what serves ──┐
                                    ├──> ONNX Runtime ───────────────────┼──> turns ──> medians
                                    └──> OpenVINO ───────────────────────┘

Each contender is a process of its own, with as many threads as there are cores. A runtime that
refuses the file takes no part.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import environment
from benchmarks.contender_process import ContenderProcess
from benchmarks.networks import NETWORKS
from benchmarks.reports import cases_parser, names, write_report
from benchmarks.states import add_state, by_state, in_state
from braid.engine.ops.dtypes import array_of
from braid.engine.runtime.threads import usable_cpus

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
START_S = 900.0
"""Seconds until a contender is warm; Braid searches first."""

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A network, and inputs of one row."""

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    vocabulary: int = 0  # of ids, which are the input then

    def module(self, dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(0)
        return self.build().eval().to(dtype)

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        if self.vocabulary:
            return tuple(
                torch.randint(0, self.vocabulary, shape, generator=generator)
                for shape in self.shapes
            )
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in self.shapes)


class _Encoder(nn.Module):
    """Embeddings and layers of attention and feed-forward, normed after each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layer = kind(64, 128, batch_first=True)
        self.head = nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        steps: Tensor = self.layer(x)[0]
        scores: Tensor = self.head(steps[:, -1])
        return scores


class _Detector(nn.Module):
    """Boxes and classes of two scales in one table."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolutions(3, 16, 32, 64)
        self.deep = _convolutions(64, 96)
        self.heads = nn.ModuleList([nn.Conv2d(64, 24, 1), nn.Conv2d(96, 24, 1)])

    def forward(self, x: Tensor) -> Tensor:
        scales = [self.stem(x)]
        scales.append(self.deep(scales[0]))
        rows = [head(scale).flatten(2) for head, scale in zip(self.heads, scales, strict=True)]
        table = torch.cat(rows, 2).transpose(1, 2)
        return torch.cat([table[..., :2].sigmoid(), table[..., 2:4].exp(), table[..., 4:]], -1)


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


def _convolutions(*channels: int) -> nn.Sequential:
    pairs = pairwise(channels)
    return nn.Sequential(
        *(nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairs)
    )


def _linear(width: int, *between: nn.Module) -> nn.Sequential:
    layers = (nn.Sequential(nn.Linear(width, width), *between) for _ in range(4))
    return nn.Sequential(*layers)


def _pooled(body: nn.Module, channels: int) -> nn.Sequential:
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100))


def _upsampler() -> nn.Module:
    return nn.Sequential(
        _convolutions(3, 16, 32),
        nn.ConvTranspose2d(32, 16, 2, 2),
        nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(16, 3, 3, padding=1),
    )


def _mixer() -> nn.Module:
    """Blocks of a U-Net of diffusion: group norms and SiLU."""
    block = (nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1))
    return nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1), *(_Residual(nn.Sequential(*block)) for _ in range(3))
    )


_IMAGE = ((1, 3, 224, 224),)
CASES: Mapping[str, Case] = {
    "cnn": Case(lambda: _pooled(_convolutions(3, 32, 64, 128), 128), ((1, 3, 160, 160),)),
    "squeezenet": Case(lambda: NETWORKS["squeezenet"].build(), _IMAGE),
    "mnasnet": Case(lambda: NETWORKS["mnasnet"].build(), _IMAGE),
    "resnet50": Case(lambda: NETWORKS["resnet50"].build(), _IMAGE),
    "encoder": Case(_Encoder, ((1, 64),), vocabulary=1000),
    "lstm": Case(lambda: _Recurrent(nn.LSTM), ((1, 32, 64),)),
    "gru": Case(lambda: _Recurrent(nn.GRU), ((1, 32, 64),)),
    "layer_norm": Case(lambda: _linear(256, nn.LayerNorm(256), nn.GELU()), ((1, 64, 256),)),
    "softmax": Case(lambda: _linear(256, nn.Softmax(-1)), ((1, 64, 256),)),
    "detector": Case(_Detector, ((1, 3, 256, 256),)),
    "upsampler": Case(_upsampler, ((1, 3, 128, 128),)),
    "group_norm": Case(_mixer, ((1, 4, 32, 32),)),
    "gemm": Case(lambda: _linear(1024, nn.ReLU()), ((1, 1024),)),
}


def write_file(case: Case, dtype: torch.dtype, path: Path) -> Path:
    """Write a case as ONNX, by torch's newer exporter, or by the older one if that fails."""
    module, inputs = case.module(dtype), case.inputs(dtype)
    called = [f"x{at}" for at in range(len(inputs))]
    torch.backends.mha.set_fastpath_enabled(False)  # one operator that no exporter writes
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module,
                inputs,
                str(path),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=called,
            )
        except Exception:
            torch.onnx.export(
                module, inputs, str(path), dynamo=False, opset_version=17, input_names=called
            )
    return path


def braid_run(model: Path, store: Path, feeds: Mapping[str, Tensor], threads: int) -> Run:
    import braid

    net = braid.compile(model, store=store, batch_sizes=[1])
    return lambda: net(feeds)


def onnxruntime_run(model: Path, store: Path, feeds: Mapping[str, Tensor], threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    arrays = {name: array_of(tensor) for name, tensor in feeds.items()}
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16)
        if array.dtype == ml_dtypes.bfloat16
        else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in arrays.items()
    }
    return lambda: session.run_with_ort_values(None, values)


def openvino_run(model: Path, store: Path, feeds: Mapping[str, Tensor], threads: int) -> Run:
    import openvino

    core = openvino.Core()
    read = core.read_model(str(model))
    read.reshape({name: list(tensor.shape) for name, tensor in feeds.items()})
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    request = core.compile_model(read, "CPU", properties).create_infer_request()
    arrays = {name: array_of(tensor) for name, tensor in feeds.items()}
    tensors = {
        name: openvino.Tensor(array.view(np.uint16), list(array.shape), openvino.Type.bf16)
        if array.dtype == ml_dtypes.bfloat16
        else openvino.Tensor(array)
        for name, array in arrays.items()
    }
    return lambda: request.infer(tensors)


CONTENDERS: Mapping[str, Callable[[Path, Path, Mapping[str, Tensor], int], Run]] = {
    "braid": braid_run,
    "onnxruntime": onnxruntime_run,
    "openvino": openvino_run,
}


def contend(options: argparse.Namespace) -> None:
    """Be a contender: print ``ready``, then the milliseconds of as many runs as each line asks."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    inputs = CASES[options.case].inputs(TYPES[options.type])
    feeds = {f"x{at}": tensor for at, tensor in enumerate(inputs)}
    run = CONTENDERS[options.contender](
        options.model, options.model.parent / "store", feeds, len(usable_cpus())
    )
    for _ in range(5):
        run()
    answers.write("ready\n")
    for line in sys.stdin:
        run()
        samples = []
        for _ in range(int(line)):
            began = time.perf_counter()
            run()
            samples.append((time.perf_counter() - began) * 1e3)
        answers.write(json.dumps(samples) + "\n")


def measure(name: str, dtype: str, folder: Path, rounds: int, state: str = "") -> dict[str, object]:
    """Let all contenders run a file in turns; returns medians in milliseconds, and refusals."""
    file = write_file(CASES[name], TYPES[dtype], folder / f"{name}_{dtype}.onnx")
    base = [sys.executable, "-m", "benchmarks.half_files", name, "--type", dtype]
    refused: dict[str, str] = {}
    contenders: dict[str, ContenderProcess] = {}
    samples: dict[str, list[float]] = {}
    try:
        for contender in CONTENDERS:
            command = [*base, "--contender", contender, "--model", str(file)]
            log = folder / f"{name}_{dtype}_{contender}.log"
            process = ContenderProcess(contender, command, log, os.environ)
            contenders[contender] = process
            try:
                process.line(START_S)
            except RuntimeError as error:
                refused[contender] = str(error)[-300:]

        def hold() -> dict[str, float]:
            took_ms: dict[str, float] = {}
            for contender, process in contenders.items():
                if contender not in refused:
                    took_ms[contender] = median(json.loads(process.ask("8")))
                    time.sleep(0.02)
            return took_ms

        for _ in range(rounds):
            for contender, took in in_state(state, hold).items():
                samples.setdefault(contender, []).append(took)
    finally:
        for process in contenders.values():
            process.end()
    ms = {contender: median(turns) for contender, turns in samples.items()}
    others = [us for contender, us in ms.items() if contender != "braid"]
    speed = min(others) / ms["braid"] if others and "braid" in ms else None
    return {"ms": ms, "refused": refused, "better over braid": speed}


def text(name: str, dtype: str, figures: Mapping[str, object]) -> str:
    took, speed = figures["ms"], figures["better over braid"]
    assert isinstance(took, dict)
    times = "  ".join(f"{contender} {ms:7.3f}" for contender, ms in took.items())
    ratio = f"{speed:.2f}" if speed else "-"
    refusals = f"  refused: {figures['refused']}" if figures["refused"] else ""
    return f"{name:12} {dtype}  {times}  speed beside the better {ratio}{refusals}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cases_parser("benchmarks.half_files", CASES, is_all_usual=True)
    parser.add_argument("--types", type=names, default=[*TYPES])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="of files and stores, kept; None: temporary")
    for hidden in ("--contender", "--type"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    add_state(parser)
    options = parser.parse_args(arguments)
    if options.contender:
        (options.case,) = options.cases
        contend(options)
        return 0
    return by_state(options, _run)


def _run(options: argparse.Namespace) -> int:
    report: dict[str, object] = {
        "environment": environment.describe("torch", "onnxruntime", "openvino")
    }
    with tempfile.TemporaryDirectory(prefix="braid-half-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for dtype in options.types:
            for name in options.cases:
                figures = measure(name, dtype, folder, options.rounds, options.state)
                report[f"{name} {dtype}"] = figures
                print(text(name, dtype, figures), flush=True)
                write_report(options.json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
