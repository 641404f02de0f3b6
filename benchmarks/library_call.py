"""What a call of a compiled network costs beside the bare executor, in one process.

    python -m benchmarks.library_call MODEL.onnx [--rounds 60] [--calls 12] --out FOLDER

The bare executor runs the same plan on the same tensors in the device's thread, in a loop. All
take short turns, the order changing, as the machine's speed wanders. A turn counts by its median;
what a call costs more is the median, over the rounds, of its difference to the bare executor.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import braid
from benchmarks.environment import describe
from benchmarks.reports import write_report
from benchmarks.states import add_state, by_state, in_state
from braid.engine.ops.dtypes import tensors_of
from braid.engine.worker.models import seeded_inputs
from braid.engine.worker.requests import begin_run

Turn = Callable[[], float]
"""Runs some times; returns the median latency in microseconds."""


def median_us(run: Callable[[], object], calls: int) -> float:
    times_us = []
    for _ in range(calls):
        began = perf_counter_ns()
        run()
        times_us.append((perf_counter_ns() - began) / 1e3)
    return statistics.median(times_us)


def turns_of(net: braid.Network, calls: int) -> dict[str, Turn]:
    """The contenders: the bare executor, by a call of its thread, and calls of the network."""
    executable = net._main.executables[1]
    given = seeded_inputs(executable.ready.program.graph, {}, 0)
    outputs = executable.new_outputs()
    device = net._device

    def bare() -> float:
        run = begin_run
        return device.call(
            lambda: median_us(
                lambda: run(device.backend, executable.ready, given, outputs).finish(), calls
            )
        )

    def handed_over() -> float:
        def run() -> None:
            begin_run(device.backend, executable.ready, given, outputs).finish()

        return median_us(lambda: device.call(run), calls)

    tensors = tensors_of(given)
    return {
        "bare executor": bare,
        "in its thread": handed_over,
        "net(numpy)": lambda: median_us(lambda: net(given), calls),
        "net(torch)": lambda: median_us(lambda: net(tensors), calls),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.library_call")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--store", type=Path, help="of schedules; default: a new one")
    parser.add_argument("--out", type=Path, required=True)
    add_state(parser)
    by_state(parser.parse_args(), _run)


def _run(options: argparse.Namespace) -> int:
    facts = describe("torch")
    with (
        tempfile.TemporaryDirectory() as folder,
        braid.compile(options.model, store=options.store or folder) as net,
    ):
        contenders = turns_of(net, options.calls)
        turns_us: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in contenders.values():
            turn()

        def hold(number: int) -> dict[str, float]:
            order = list(contenders)
            names = order[number % len(order) :] + order[: number % len(order)]
            return {name: contenders[name]() for name in names}

        for number in range(options.rounds):
            for name, turn_us in in_state(options.state, partial(hold, number)).items():
                turns_us[name].append(turn_us)
        plan = net.plan_ids[1]
    medians = {name: statistics.median(turns) for name, turns in turns_us.items()}
    print(f"{options.model.stem}, plan {plan}, {options.rounds} rounds of {options.calls} calls")
    for name, median in medians.items():
        pairs = zip(turns_us[name], turns_us["bare executor"], strict=True)
        more_us = statistics.median(turn - bare for turn, bare in pairs)
        print(f"{name:<14} {median:9.1f} us   {more_us:+.1f} us")
    document = {**facts, "model": options.model.stem, "plan": plan, "turns_us": turns_us}
    write_report(options.out / f"library-{options.model.stem}.json", document)
    return 0


if __name__ == "__main__":
    main()
