"""Builds of oneDNN on the convolutions and linear layers of networks, in each precision.

    python -m benchmarks.which_onednn --networks squeezenet,resnet50 --models FOLDER --out FOLDER

Each library runs in a process of its own, all in turns. The package, torch's own and any FILE given
with ``--file NAME=PATH`` are called through the C interface, primitives made once; ``operators`` is
torch's own through its operators. A network's figure is the sum over its units, medians of rounds,
as a part of the package's. INT8 is u8 by s8 to u8 without scales, which cost next to nothing.
Prints a table and writes which_onednn.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import onnx
import torch

from benchmarks.contender_process import ContenderProcess
from benchmarks.environment import describe
from benchmarks.networks.export import model_file
from benchmarks.networks.registry import NETWORKS, inputs_of
from benchmarks.onednn_units import LIBRARIES, PRECISIONS, UnitShape, shapes_of
from benchmarks.reports import write_report
from braid.engine.onnx.lowering import lower
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import specialise
from braid.engine.processes.environment import cpu_environment

Figures = dict[str, dict[str, dict[str, float]]]
"""Precision -> network -> library -> microseconds of all its units."""

PATIENCE_S = 90.0


def units_of(network: str, models: Path) -> Counter[UnitShape]:
    """Convolutions and linear layers of a network at batch 1, and how often each one is there."""
    template, weights = run_passes(*lower(onnx.load(model_file(network, models))))
    inputs = {name: spec_of(tensor) for name, tensor in inputs_of(NETWORKS[network]).items()}
    graph, _ = specialise(template, weights, inputs)
    return Counter(shapes_of(graph))


def measure(
    units: Sequence[UnitShape], libraries: Mapping[str, str], precision: str, rounds: int
) -> dict[str, list[float | None]]:
    """Microseconds of each unit by library, medians of ``rounds``; None where it has no kernel."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "units.json"
        listed.write_text(json.dumps([list(unit) for unit in units]))
        command = [sys.executable, "-m", "benchmarks.onednn_units", str(listed), precision]
        contenders = {
            name: ContenderProcess(
                name, [*command, source], Path(folder) / name, cpu_environment(os.environ)
            )
            for name, source in libraries.items()
        }
        try:
            samples = _in_turns(contenders, rounds)
        finally:
            for contender in contenders.values():
                contender.end()
    return {
        name: [
            None if times[0] is None else median(times) for times in zip(*taken, strict=True)
        ]
        for name, taken in samples.items()
    }  # fmt: skip


def _in_turns(
    contenders: Mapping[str, ContenderProcess], rounds: int
) -> dict[str, list[list[float]]]:
    samples: dict[str, list[list[float]]] = {}
    for name, contender in contenders.items():
        try:
            assert contender.line(PATIENCE_S) == "ready"
            samples[name] = []
        except RuntimeError as error:
            print(f"{name} does not run: {error}", file=sys.stderr)
    for round_ in range(rounds):
        names = list(samples)
        first = round_ % len(names)
        for name in [*names[first:], *names[:first]]:
            samples[name].append(json.loads(contenders[name].ask("run", PATIENCE_S)))
    return samples


def of_networks(
    networks: Mapping[str, Counter[UnitShape]],
    units: Sequence[UnitShape],
    measured: Mapping[str, Sequence[float | None]],
) -> dict[str, dict[str, float]]:
    """Sums over the units of each network that every library has a kernel for."""
    common = [
        index for index in range(len(units)) if all(m[index] is not None for m in measured.values())
    ]
    return {
        network: {
            name: sum(count[units[i]] * (times[i] or 0.0) for i in common)
            for name, times in measured.items()
        }
        for network, count in networks.items()
    }


def print_table(figures: Figures) -> None:
    for precision, networks in figures.items():
        for network, by_library in networks.items():
            base = next(iter(by_library.values())) or 1.0
            cells = (f"{name} {us:9.0f} us {us / base:5.2f}" for name, us in by_library.items())
            print(f"{precision:5} {network:14}", "   ".join(cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", default="squeezenet,mnasnet,googlenet,resnet50,bert_base")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--file", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--models", type=Path, required=True, help="folder with NETWORK.onnx")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/local"))
    args = parser.parse_args()
    environment = describe("torch", "onednn-cpu-gomp")
    with torch.inference_mode():
        networks = {name: units_of(name, args.models) for name in args.networks.split(",")}
    units = sorted({unit for counts in networks.values() for unit in counts})
    libraries = {name: name for name in args.libraries.split(",")}
    libraries.update(named.split("=", 1) for named in args.file)
    figures: Figures = {}
    for precision in args.precisions.split(","):
        measured = measure(units, libraries, precision, args.rounds)
        figures[precision] = of_networks(networks, units, measured)
    print_table(figures)
    document = {"environment": environment, "units": len(units), "us": figures}
    write_report(args.out / "which_onednn.json", document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
