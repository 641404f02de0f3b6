"""Curves of the studies as SVG files, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet.simulate.studies import Point

MARKERS = "osD^v"


@dataclass(frozen=True, slots=True)
class Axes:
    """What a picture shows: labels of its axes, and whether they are logarithmic."""

    title: str
    x: str
    y: str = "p99, ms"
    is_log_x: bool = False
    is_log_y: bool = False


PICTURES = {
    "size": Axes("Equal nodes at 0.8 of their throughput", "nodes", is_log_x=True),
    "use": Axes("Behind least connections", "share of the throughput", is_log_y=True),
    "doors": Axes("Equal nodes at 0.8", "doors that do not know of each other", is_log_x=True),
    "mixed": Axes("6 nodes of latencies 1:1:10", "share of the throughput", is_log_y=True),
}

SCALED = Axes("Four times the load from 60 s to 150 s", "seconds", "nodes that take requests")


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for study, axes in PICTURES.items():
        if any(point.study == study for point in points):
            path = folder / f"fleet-{study}.svg"
            _lines([point for point in points if point.study == study], axes, path)
            written.append(path)
    scaled = [point for point in points if point.study == "autoscaling"]
    if scaled:
        written.append(folder / "fleet-autoscaling.svg")
        draw_steps({point.curve: point.report.sizes for point in scaled}, SCALED, written[-1])
    return written


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "braid"  # the same picture has the same text
    from matplotlib import pyplot

    return pyplot


def _lines(points: Sequence[Point], axes: Axes, path: Path) -> None:
    pyplot = _pyplot()
    figure, plot = pyplot.subplots(figsize=(6.4, 3.6))
    curves = dict.fromkeys(point.curve for point in points)
    for curve, marker in zip(curves, MARKERS, strict=False):
        mine = [point for point in points if point.curve == curve]
        xs, ys = [point.x for point in mine], [point.report.p99_ms for point in mine]
        plot.plot(xs, ys, marker=marker, markersize=4, linewidth=1.2, label=curve)
    if axes.is_log_x:
        ticks = sorted({point.x for point in points})
        plot.set_xscale("log")
        plot.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        plot.minorticks_off()
    if axes.is_log_y:
        plot.set_yscale("log")
    else:
        plot.set_ylim(bottom=0)
    _finish(pyplot, figure, plot, axes, path)


def draw_steps(curves: Mapping[str, Sequence[tuple[float, float]]], axes: Axes, path: Path) -> None:
    """Write curves of (second, value), each of whose values holds until the next one."""
    pyplot = _pyplot()
    figure, plot = pyplot.subplots(figsize=(6.4, 3.6))
    for name, points in curves.items():
        plot.step(*zip(*points, strict=True), where="post", label=name)
    plot.set_ylim(bottom=0)
    _finish(pyplot, figure, plot, axes, path)


def _finish(pyplot: Any, figure: Any, plot: Any, axes: Axes, path: Path) -> None:
    plot.set_title(axes.title)
    plot.set_xlabel(axes.x)
    plot.set_ylabel(axes.y)
    plot.grid(alpha=0.3)
    plot.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
