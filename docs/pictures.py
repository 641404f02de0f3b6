"""Write the drawn pictures of the documentation: ``python docs/pictures.py``.

The block is planned for a made-up device, so that the pictures are the same everywhere.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.inception_block import inception_e, planned
from braid.charts.svg import timeline_svg
from braid.charts.timeline import scheduled, sequential

FOLDER = Path(__file__).resolve().parent / "images"


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    schedule, graph = planned(), inception_e()
    tracks = [sequential(schedule), scheduled(schedule)]
    heading = "The last block of Inception V3 on a synthetic device"
    return {"inception-block.svg": timeline_svg(tracks, [graph, graph], heading)}


if __name__ == "__main__":
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture)
