"""What planners, runtimes and kinds of plans are worth, each left out in turn.

    python -m benchmarks.ablation FOLDER... [--batches 1] [--quick] --json FILE

Each ONNX file of the folders is registered as a user does; its schedules hold the measurements of
all candidates, made in turns in one run. A kind is left out in thought: the loss is the latency of
the best candidate of the other kinds over that of the best of all, among candidates that may serve.
Estimates are medians of ratios to the sequential plan; the best of many noisy ones looks too good,
so a loss is rather too large. ``--quick`` takes twelve files. A file that FILE has is left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.environment import describe
from benchmarks.load.processes import braid_server
from benchmarks.reports import numbers, parser_of, write_report
from braid_client import BraidError

QUICK = 12
NAME = "model"


def candidates_of(file: Path, batches: Sequence[int], folder: Path) -> Mapping[str, Any]:
    """Register a file; the candidates' rows by batch size, and seconds until all are made."""
    with braid_server(folder / "store") as server:
        began = time.monotonic()
        server.client.register(NAME, file, batch_sizes=batches, wait=True)
        ready_s = time.monotonic() - began
        documents = {batch: server.client.schedule(NAME, batch).schedule for batch in batches}
    rows = {batch: found["provenance"]["candidates"] for batch, found in documents.items()}
    return {"ready_s": ready_s, "candidates": rows}


def kinds_of(row: Mapping[str, Any]) -> set[str]:
    """Kinds that offer a candidate: its planner or runtime, and planners that found the same."""
    return {name.partition("(")[0] for name in (row["name"], *row.get("also", ()))}


def may_serve(row: Mapping[str, Any]) -> bool:
    return bool(row.get("speedup")) and not row.get("remark")


def comparisons(networks: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for name, network in networks.items():
        for batch, rows in network.get("candidates", {}).items():
            if usable := [row for row in rows if may_serve(row)]:
                yield f"{name}/{batch}", usable


def loss_without(kind: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """Latency without a kind over that with all; the sequential plan, at 1.0, always stays."""
    left = [row["speedup"] for row in rows if kinds_of(row) - {kind}]
    return max(1.0, float(max(row["speedup"] for row in rows) / max([1.0, *left])))


def table(networks: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """One row a kind: what is lost without it, and what it costs a registration."""
    compared = dict(comparisons(networks))
    for kind in sorted(
        {kind for rows in compared.values() for row in rows for kind in kinds_of(row)}
    ):
        losses = {name: loss_without(kind, rows) for name, rows in compared.items()}
        worst = max(losses, key=lambda name: losses[name])
        alone = [
            row for rows in compared.values() for row in rows if kinds_of(row) == {kind}
        ]  # other planners' plans are measured anyway
        yield {
            "kind": kind,
            "lost": geometric_mean(losses.values()),
            "most": losses[worst],
            "where": worst,
            "best": sum(loss > 1.0 for loss in losses.values()),
            "of": len(losses),
            "candidates": len(alone) / len(compared),
            "seconds": sum(row["runs"] * row["latency_us"] for row in alone) / 1e6 / len(compared),
        }


def main() -> int:
    parser = parser_of("benchmarks.ablation", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="of ONNX files")
    parser.add_argument("--batches", type=numbers, default=[1])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    networks = json.loads(options.json.read_text())["networks"] if options.json.exists() else {}
    facts = describe("onnxruntime", "openvino")
    files = sorted(file for folder in options.folders for file in folder.glob("*.onnx"))
    for file in files[:: max(1, len(files) // QUICK)][:QUICK] if options.quick else files:
        if file.stem in networks:
            continue
        with tempfile.TemporaryDirectory(prefix="braid-ablation-") as folder:
            try:
                networks[file.stem] = candidates_of(file, options.batches, Path(folder))
            except BraidError as error:
                networks[file.stem] = {"error": str(error)}
        print(file.stem, networks[file.stem].get("error", ""), flush=True)
        rows = list(table(networks))
        write_report(options.json, {"environment": facts, "table": rows, "networks": networks})
    print(
        f"{'left out':16} {'lost':>6} {'most':>6} {'best':>7} {'cand.':>6} {'s':>6}  most lost at"
    )
    for row in table(networks):
        best = f"{row['best']}/{row['of']}"
        figures = f"{row['lost']:6.4f} {row['most']:6.3f} {best:>7} {row['candidates']:6.2f}"
        print(f"{row['kind']:16} {figures} {row['seconds']:6.2f}  {row['where']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
