"""Write benchmark networks as ONNX or ``.pt2`` files.

python -m benchmarks.networks.export squeezenet inception_v3 --out DIR [--format pt2]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.networks.network import Network
from benchmarks.networks.onnx_file import TRACED_BATCH, write_onnx
from benchmarks.networks.registry import NETWORKS


def export_onnx(name: str, path: Path, *, seed: int = 0) -> Path:
    """Write network ``name`` to ``path``, replacing the file in one step, and return ``path``.

    Raises:
        KeyError: no network has this name; the message lists the names there are.
    """
    return write_onnx(_network(name), path, seed=seed)


def model_file(name: str, folder: Path) -> Path:
    """The ONNX file of a network in ``folder``, written unless it is there."""
    path = folder / f"{name}.onnx"
    return path if path.exists() else export_onnx(name, path)


def export_pt2(name: str, path: Path, *, seed: int = 0) -> Path:
    """Write network ``name`` as torch.export saves it, dimension 0 of every input open.

    Raises:
        KeyError: no network has this name; the message lists the names there are.
    """
    network = _network(name)
    inputs = network.example_inputs(TRACED_BATCH)
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        network.build(seed), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)
    return path


def _network(name: str) -> Network:
    if name not in NETWORKS:
        raise KeyError(f"no network named {name!r}; known: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks.export")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*NETWORKS, "all"])
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--format", choices=["onnx", "pt2"], default="onnx")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    names = list(NETWORKS) if "all" in options.names else options.names
    for name in names:
        started = time.perf_counter()
        export = export_pt2 if options.format == "pt2" else export_onnx
        path = export(name, options.out / f"{name}.{options.format}", seed=options.seed)
        seconds = time.perf_counter() - started
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB  {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
