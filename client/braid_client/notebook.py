"""Records as HTML for notebooks: tables without styles of their own; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from braid_client.tensors import Array, BFloat16Bits

if TYPE_CHECKING:
    from braid_client.records import InferResult, Job, Model, ScheduleSummary

_PLAN = ("device", "batch", "precision", "plan", "planner", "measured", "sequential", "speed-up",
         "beside the best other")  # fmt: skip


class ScheduleDocuments(NamedTuple):
    """Schedule of a model and the operator graph whose units it names, as JSON documents."""

    schedule: dict[str, Any]
    graph: dict[str, Any]

    def _repr_html_(self) -> str:
        key, provenance = self.schedule["key"], self.schedule["provenance"]
        facts = f"batch {key['batch_size']} on {key['device_key']}: {self.schedule['planner']}"
        if provenance.get("measured_us") and provenance.get("sequential_us"):
            facts += (
                f", {_ms(provenance['measured_us'])}, sequential {_ms(provenance['sequential_us'])}"
            )
        if not self.schedule["stages"]:
            return table(("position", "stream", "unit"), _launches(self.schedule), facts)
        return table(("stage", "latency", "groups"), _stages(self.schedule), facts)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{_cells('th', heads)}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cells(tag: str, texts: Iterable[object]) -> str:
    return "".join(f"<{tag}>{escape(str(text))}</{tag}>" for text in texts)


def result_html(result: InferResult) -> str:
    timing = result.timing
    preparing = f" and {_ms(timing.prepare_us)} preparing" if timing.prepare_us else ""
    caption = (
        f"{result.model}, version {result.version}, plan {result.plan_id}: "
        f"{_ms(timing.total_us)}, of which {_ms(timing.queue_us)} queue{preparing}"
    )
    rows = (_output(name, array) for name, array in result.outputs.items())
    return table(("output", "dtype", "shape", "min", "mean", "max"), rows, caption)


def job_html(job: Job) -> str:
    row = (job.model, job.version, job.state, f"{job.progress:.0%}", job.message or job.detail)
    return table(("model", "version", "state", "progress", ""), [row], f"job {job.id}")


def model_html(model: Model) -> str:
    takes = "; ".join(map(str, model.inputs))
    gives = "; ".join(map(str, model.outputs))
    caption = f"{model.name}, version {model.version}, {model.state}: {takes} → {gives}"
    return table(_PLAN, map(_plan, model.schedules), caption)


def summary_html(summary: ScheduleSummary) -> str:
    return table(_PLAN, [_plan(summary)], "in service" if summary.promoted else "not in service")


def _plan(summary: ScheduleSummary) -> tuple[object, ...]:
    return (
        summary.device,
        summary.batch_size,
        summary.precision or "fp32",
        summary.plan_id,
        f"{summary.planner}{'' if summary.promoted else ' (the sequential plan serves)'}",
        _ms(summary.measured_us),
        _ms(summary.sequential_us),
        f"{summary.speedup:.2f}" if summary.speedup else "not known",
        f"{summary.best_other_ratio:.2f}, {summary.best_other}" if summary.best_other else "-",
    )


def _output(name: str, array: Array) -> tuple[object, ...]:
    dtype = "bfloat16" if isinstance(array, BFloat16Bits) else array.dtype.name
    shape = " x ".join(map(str, array.shape)) or "scalar"
    if not array.size or array.dtype.kind not in "biufV":
        return name, dtype, shape, "", "", ""
    values = array.float32() if isinstance(array, BFloat16Bits) else array.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity, in the mean
        statistics = (values.min(), values.mean(), values.max())
    return (name, dtype, shape, *(f"{number:.6g}" for number in statistics))


def _stages(schedule: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    names = schedule["unit_names"]
    for number, stage in enumerate(schedule["stages"], 1):
        latency = "" if stage["latency_us"] is None else f"{stage['latency_us']:.0f} us"
        groups = (" → ".join(names[unit] for unit in group) for group in stage["groups"])
        yield number, latency, " | ".join(groups)


def _launches(schedule: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for position, (unit, stream, *_) in enumerate(schedule["plan"]["launches"], 1):
        yield position, stream, schedule["unit_names"][unit]


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.2f} ms"
