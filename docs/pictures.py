"""Write the drawn pictures of the documentation: ``python docs/pictures.py``.

    a block, planned for a made-up device ──────> inception-block.svg
    results of benchmarks.engine ──where a scheduled plan serves──> scheduled.svg

Neither depends on the machine, so a test can tell whether the pictures are current.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.inception_block import inception_e, planned
from braid.charts.svg import timeline_svg
from braid.charts.timeline import scheduled, sequential

FOLDER = Path(__file__).resolve().parent / "images"
RESULTS = FOLDER.parents[1] / "benchmarks/results/amd-epyc-2core-2026-11-23/engine"
CASES = (("fp32", "googlenet"), ("fp32", "nasnet_mobile"), ("bf16", "randwire_small"))
NAMES = {
    "googlenet": "GoogLeNet",
    "nasnet_mobile": "NASNet-A mobile",
    "randwire_small": "RandWire small",
}
SEQUENTIAL, SCHEDULED = "Braid, one operator after the other", "Braid, as scheduled"
LEFT, BAR, LONGEST = 250, 20, 560  # in units of the picture
STYLE = """
text{font:13px system-ui,sans-serif;fill:#1a1a1a} .title{font-weight:600}
.page{fill:#fff} rect.bar{fill:#b8c4ce;stroke:#222;stroke-width:.8} rect.served{fill:#4f9fd1}
@media (prefers-color-scheme:dark){.page{fill:#16181c} text{fill:#eee} rect.bar{fill:#59636c}
rect.served{fill:#2f7fb3}}
"""


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    schedule, graph = planned(), inception_e()
    tracks = [sequential(schedule), scheduled(schedule)]
    heading = "The last block of Inception V3 on a synthetic device"
    return {
        "inception-block.svg": timeline_svg(tracks, [graph, graph], heading),
        "scheduled.svg": bars_svg(),
    }


def bars_svg() -> str:
    """Bars of each engine's latency, for networks that a scheduled plan of Braid's serves.

    Pointing at a bar shows the runs that its median is of.
    """
    rows, y = [], 0
    for precision, network in CASES:
        runs = dict(_runs_ms(precision, network))
        most = max(map(median, runs.values()))
        gain = median(runs[SEQUENTIAL]) / median(runs[SCHEDULED])
        title = (
            f"{NAMES[network]}, {precision.upper()}: scheduling makes it {gain:.2f} times as fast"
        )
        y += 34
        rows.append(f'<text class="title" x="14" y="{y}">{title}</text>')
        for name, runs_ms in runs.items():
            y += BAR + 6
            rows += _bar(name, runs_ms, LONGEST / most, y - 14)
    head = f'xmlns="http://www.w3.org/2000/svg" role="img" width="920" height="{y + 24}"'
    return (
        f'<svg {head} viewBox="0 0 920 {y + 24}" aria-label="Latency of three networks"><style>'
        f'{STYLE}</style><rect class="page" width="100%" height="100%"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def _bar(name: str, runs_ms: Sequence[float], per_ms: float, y: float) -> Iterator[str]:
    latency_ms, kind = median(runs_ms), "bar served" if name == SCHEDULED else "bar"
    width = latency_ms * per_ms
    about = f"runs, in ms: {', '.join(f'{run_ms:.2f}' for run_ms in runs_ms)}"
    yield f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{name}</text>'
    yield f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}">'
    yield f"<title>{about}</title></rect>"
    yield f'<text x="{LEFT + width + 8:.1f}" y="{y + 15}">{latency_ms:.2f} ms</text>'


def _runs_ms(precision: str, network: str) -> Iterator[tuple[str, Sequence[float]]]:
    """Latencies of what computes in this precision; ONNX Runtime has no BF16 on CPUs."""
    document: Mapping[str, Any] = json.loads((RESULTS / f"{precision}.json").read_text())
    [case] = (case for case in document["cases"] if case["network"] == network)
    if precision == "fp32":
        yield "ONNX Runtime", case["samples_ms"]["onnxruntime-sequential"]
    yield "OpenVINO", case["samples_ms"]["openvino"]
    yield SEQUENTIAL, case["samples_ms"]["braid sequential"]
    yield SCHEDULED, case["samples_ms"][f"braid {case['own']}"]


if __name__ == "__main__":
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture)
