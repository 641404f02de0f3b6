"""One way to run an exported file, alone in its process: ``python -m benchmarks.zoo.contender``.

    serves        what Braid chooses; compiled first, and its facts are the first line printed
    sequential    Braid's own sequential plan, on the kernels that were chosen
    onnxruntime, openvino

Prints a line of JSON when it is warm and has written its outputs; then, for each number read from
its input, the milliseconds of that many runs as a JSON list.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import braid
from benchmarks.zoo.files import FP32, TYPES, cast, feeds_of
from braid.core.runtimes import RUNTIMES, engine_of
from braid.core.schedule import SEQUENTIAL, Schedule
from braid.engine.ops.dtypes import array_of
from braid.engine.runtime.threads import usable_cpus

SERVES = "serves"
WARM_UPS = 5

Feeds = Mapping[str, Tensor]
Outputs = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A network that is ready to run: its outputs, and the milliseconds of so many runs."""

    outputs: Outputs
    turn_ms: Callable[[int], list[float]]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What Braid found for a file: candidates of the comparison, and which engine runs what."""

    planner: str = ""  # empty: it is served whole, without a plan
    plan_id: str = ""
    candidates: Mapping[str, float] = field(default_factory=dict)  # that may serve, ms by name
    refused: Mapping[str, str] = field(default_factory=dict)  # candidate -> why
    fallbacks: tuple[str, ...] = ()  # why something simpler serves than was found or asked
    units: Mapping[str, int] = field(default_factory=dict)  # engine that serves -> units
    kinds_ms: Mapping[str, float] = field(default_factory=dict)  # kind -> own units, each alone
    choices: Mapping[str, str] = field(default_factory=dict)  # unusual kernels
    provisional: str = ""
    digest: str = ""


def plan_facts(net: braid.Network, rows: int) -> PlanFacts:
    found = net.schedules.get(rows)
    if found is None:
        return PlanFacts(fallbacks=tuple(net.remarks))
    schedule, graph = found.document, found.graph
    provenance = schedule.provenance
    kind_of = {operator.name: operator.kind for operator in graph.operators}
    kinds_ms: Counter[str] = Counter()
    for unit, took_us in provenance.unit_us.items():
        kinds_ms[kind_of.get(unit, "other")] += took_us / 1e3
    reasons = [f"{what} is left out: {why}" for what, why in provenance.left_out.items()]
    reasons += [provenance.reason] if provenance.reason else []
    return PlanFacts(
        planner=schedule.planner if provenance.promoted else SEQUENTIAL,
        plan_id=schedule.plan_id,
        candidates={
            candidate.full_name: candidate.latency_us / 1e3
            for candidate in provenance.candidates
            if candidate.latency_us is not None and not candidate.remark
        },
        refused={
            candidate.full_name: candidate.remark
            for candidate in provenance.candidates
            if candidate.remark
        },
        fallbacks=tuple(reasons),
        units=_units_by_engine(schedule),
        kinds_ms=dict(kinds_ms),
        choices=dict(provenance.choices),
        provisional=found.provisional,
        digest=schedule.key.model_digest,
    )


def _units_by_engine(schedule: Schedule) -> dict[str, int]:
    """Count units of what serves by the engine that runs them; own kernels are "own"."""
    units = len(schedule.unit_names)
    if schedule.runtime and schedule.provenance.promoted:
        return {engine_of(schedule.runtime): units}
    counts: Counter[str] = Counter()
    parts = schedule.plan.parts if schedule.provenance.promoted else ()
    for part in parts[:1] if any(part.rows for part in parts) else parts:
        counts[part.engine or "own"] += len(part.units)
    counts["own"] += units - counts.total()
    return {engine: count for engine, count in counts.items() if count}


def engine_names(names: Mapping[str, Any]) -> set[str]:
    """Return the engines among names of candidates; "own" for plans."""
    first = (name.partition(" in ")[0] for name in names)
    return {engine_of(name) if name in RUNTIMES else "own" for name in first}


def serves(options: argparse.Namespace, feeds: Feeds, stack: ExitStack) -> Contestant:
    net = _compiled(options, stack)
    facts = asdict(plan_facts(net, options.rows))
    executable = net._executables.get(options.rows)
    return replace(_in_device_thread(net, executable, feeds), facts=facts)


def sequential(options: argparse.Namespace, feeds: Feeds, stack: ExitStack) -> Contestant:
    net = _compiled(options, stack)
    plain = replace(
        net._compiled.to_run(net._profiled, options.rows),
        plan=None,
        plan_id=SEQUENTIAL,
        runtime="",
    )
    executable = net._device.call(lambda: net._device.prepare(plain))
    return _in_device_thread(net, executable, feeds)


def _compiled(options: argparse.Namespace, stack: ExitStack) -> braid.Network:
    net = braid.compile(
        options.file, store=options.store, batch_sizes=[options.rows], planner=options.planner
    )
    return stack.enter_context(net)


def _in_device_thread(net: braid.Network, executable: Any, feeds: Feeds) -> Contestant:
    """Run the bare executable in a loop of its thread; a call where the content decides a plan."""
    if executable is None or net.static_inputs:
        outputs = net(feeds)
        outputs = outputs if isinstance(outputs, Mapping) else {net.outputs[0]: outputs}
        return _contestant(_arrays(outputs), lambda: net(feeds))
    device = net._device
    given = {name: feeds[name] for name in executable.ready.program.graph.inputs}
    spare = {name: torch.empty_like(tensor) for name, tensor in executable.spare.items()}

    def run() -> object:
        return executable.run(device.backend, given, spare)

    outputs = device.call(lambda: {name: value.clone() for name, value in run().items()})
    turn = _contestant(_arrays(outputs), run).turn_ms
    return Contestant(_arrays(outputs), lambda count: device.call(lambda: turn(count)))


def onnxruntime(options: argparse.Namespace, feeds: Feeds, stack: ExitStack) -> Contestant:
    import onnxruntime

    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(
        options.file, session_options, providers=["CPUExecutionProvider"]
    )
    values = {}
    for given in session.get_inputs():
        array = array_of(feeds[given.name])
        values[given.name] = (
            onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16)
            if array.dtype == ml_dtypes.bfloat16
            else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        )
    names = [output.name for output in session.get_outputs()]
    answers = session.run_with_ort_values(None, values)
    arrays = (answer.numpy() for answer in answers)
    return _contestant(
        dict(zip(names, arrays, strict=True)), lambda: session.run_with_ort_values(None, values)
    )


def openvino(options: argparse.Namespace, feeds: Feeds, stack: ExitStack) -> Contestant:
    import openvino

    core = openvino.Core()
    model = core.read_model(str(options.file))
    taken = {port.any_name for port in model.inputs}
    arrays = {name: array_of(given) for name, given in feeds.items() if name in taken}
    model.reshape({name: list(array.shape) for name, array in arrays.items()})
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": options.threads,
    }
    request = core.compile_model(model, "CPU", properties).create_infer_request()
    tensors = {
        name: openvino.Tensor(array.view(np.uint16), list(array.shape), openvino.Type.bf16)
        if array.dtype == ml_dtypes.bfloat16
        else openvino.Tensor(array)
        for name, array in arrays.items()
    }
    answers = request.infer(tensors)
    outputs = {name: np.array(array) for port, array in answers.items() for name in port.names}
    return _contestant(outputs, lambda: request.infer(tensors))


CONTENDERS: Mapping[str, Callable[[argparse.Namespace, Feeds, ExitStack], Contestant]] = {
    SERVES: serves,
    SEQUENTIAL: sequential,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def _contestant(outputs: Outputs, run: Callable[[], object]) -> Contestant:
    def turn_ms(count: int) -> list[float]:
        samples = []
        for _ in range(count):
            began = perf_counter_ns()
            run()
            samples.append((perf_counter_ns() - began) / 1e6)
        return samples

    return Contestant(outputs, turn_ms)


def _arrays(outputs: Mapping[str, Tensor]) -> Outputs:
    return {name: array_of(value) for name, value in outputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.contender")
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("file", type=Path, help="as benchmarks.zoo.files exported it")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--type", choices=TYPES, default=FP32)
    parser.add_argument("--threads", type=int, default=len(usable_cpus()))
    parser.add_argument("--store", type=Path, required=True, help="of Braid's schedules")
    parser.add_argument("--planner", required=True)
    parser.add_argument("--outputs", type=Path, required=True, help="where they are written")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of compilers, about things that nobody here can change
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    feeds = cast(feeds_of(options.file, options.rows), TYPES[options.type])
    with ExitStack() as stack, torch.inference_mode():
        contestant = CONTENDERS[options.contender](options, feeds, stack)
        floats = {name: array.astype(np.float64) for name, array in contestant.outputs.items()}
        np.savez(options.outputs, **floats)
        contestant.turn_ms(WARM_UPS)
        answers.write(json.dumps(contestant.facts) + "\n")
        for line in sys.stdin:
            contestant.turn_ms(1)
            answers.write(json.dumps(contestant.turn_ms(int(line))) + "\n")


if __name__ == "__main__":
    main()
