"""Write benchmark networks as ONNX or ``.pt2`` files.

    python -m benchmarks.networks.export squeezenet inception_v3 --out DIR [--format pt2]

For ONNX, uses torch's TorchScript exporter: it needs no further package and writes one node per
layer. Batch norms are kept, so that the file is the network as written. The same seed gives the
same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnx
import torch
from torch import Tensor

from benchmarks.networks.registry import NETWORKS

OPSET = 17

# Of two rows: a batch of one is where an exporter takes a broadcast for a plain dimension.
_TRACED_BATCH = 2


def export_onnx(name: str, path: Path, *, seed: int = 0) -> Path:
    """Write network ``name`` to ``path``, replacing it in one step, and return ``path``.

    Dimension 0 of every input and output is the symbol "batch". One file, no external data.

    Raises:
        KeyError: no network has this name; the message lists those there are.
    """
    if name not in NETWORKS:
        raise KeyError(f"no network named {name!r}; known: {', '.join(NETWORKS)}")
    network = NETWORKS[name]
    model = network.build(seed)
    inputs = network.example_inputs(_TRACED_BATCH)
    names = (*network.input_names, *network.output_names)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with warnings.catch_warnings():
            # The exporter calls itself legacy, and warns that shapes checked in Python are fixed.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                inputs,
                temporary,
                dynamo=False,
                opset_version=OPSET,
                training=torch.onnx.TrainingMode.PRESERVE,  # eval mode, batch norms not folded
                input_names=list(network.input_names),
                output_names=list(network.output_names),
                dynamic_axes={value: {0: "batch"} for value in names},
            )
        _declare_output(Path(temporary), model(*inputs))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def export_pt2(name: str, path: Path, *, seed: int = 0) -> Path:
    """Write network ``name`` as torch.export saves it, dimension 0 of every input open.

    Raises:
        KeyError: no network has this name; the message lists those there are.
    """
    if name not in NETWORKS:
        raise KeyError(f"no network named {name!r}; known: {', '.join(NETWORKS)}")
    network = NETWORKS[name]
    inputs = network.example_inputs(_TRACED_BATCH)
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        network.build(seed), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)
    return path


def _declare_output(path: Path, output: Tensor) -> None:
    """Give the only output its known extents, where the exporter's shape inference lost them."""
    model = onnx.load(path)
    (declared,) = model.graph.output
    dims = declared.type.tensor_type.shape.dim
    lost = [axis for axis, dim in enumerate(dims) if axis > 0 and dim.dim_param]
    if not lost:
        return
    for axis in lost:
        dims[axis].dim_value = output.shape[axis]
    path.write_bytes(model.SerializeToString(deterministic=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
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
