"""The pages about models: all of them, and one."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from braid.core.plan import runs_in_sequence
from braid.core.runtimes import RUNTIMES, SERVED_WHOLE
from braid.core.schedule import SERVES, Contender
from braid.core.tensor import TensorType
from braid.server.console.facts import Facts
from braid.server.console.formats import UNKNOWN, duration, plan_names, rate
from braid.server.console.graphs import latency_svg, lengths_svg
from braid.server.console.rates import ALL, Key, ModelRates
from braid.server.console.rendering import Page
from braid.server.inference.replica import ModelReplica
from braid.server.models.queries import Placed
from braid.server.observability.series.requests import Statistics
from braid.server.store.records import ModelStatus, ModelVersion

FEW = 12  # models that need no filter
OWN, IN_SEQUENCE = "Braid's own plan", "Braid's own plan, one operator after another"
FLOATS = ("FP32", "FP16", "BF16", "FP64")
CHANNELS = (1, 3, 4)  # of images


@dataclass(frozen=True, slots=True)
class TryInput:
    """Fields of one input in the form that tries a model, as they are at first."""

    name: str
    spec: TensorType
    shape: Sequence[int]
    layout: str  # of an image, "" for other inputs

    @property
    def divisor(self) -> str:
        return "255" if self.spec.dtype in FLOATS else "1"

    @property
    def mean(self) -> str:
        return self._by_channel("0.485, 0.456, 0.406", "0")

    @property
    def deviation(self) -> str:
        return self._by_channel("0.229, 0.224, 0.225", "1")

    def _by_channel(self, usual: str, plain: str) -> str:
        """Return what ImageNet is scaled with, where an input of floats takes RGB."""
        axis = 1 if self.layout == "NCHW" else 3
        return usual if self.spec.dtype in FLOATS and self.shape[axis] == 3 else plain


async def all_models(facts: Facts, wanted: str) -> Page:
    models = await facts.queries.models()
    activity = await facts.activity()
    jobs = [job for job in await facts.jobs() if not job.state.has_ended]
    now, states = _rates(activity.get(ALL)), Counter(model.state for model in models)
    failed = sum(count for state, count in states.items() if state.has_failed)
    shown = {
        "wanted": wanted,
        "register": facts.register(),
        "has_filter": len(models) > FEW or bool(wanted),
        "tiles": {
            "models": str(len({model.name for model in models})),
            "versions serving": str(states[ModelStatus.SERVING]),
            "versions failed": str(failed),
            **{name: now[name] for name in ("requests/s", "p99", "failures/s")},
            **{
                f"device {device.name}": "ready" if device.is_up else "restarting"
                for device in facts.devices.all
            },
            "private memory of server and workers": await facts.memory_text(),
        },
        "latency": latency_svg(facts.rates.points(ALL)),
        "jobs_under_way": len(jobs),
        "rows": [
            (
                model,
                _now(facts, model, activity),
                _why(model, facts.served(model), facts.placed(model)),
            )
            for model in models
            if wanted.lower() in model.name.lower()
        ],
    }
    return Page("models.html", "Models", shown, "Models", is_live=True)


def _key(model: ModelVersion) -> Key:
    return model.name, str(model.version)


def _rates(now: ModelRates | None) -> dict[str, str]:
    if now is None:
        return dict.fromkeys(("requests/s", "p50", "p99", "failures/s"), UNKNOWN)
    return {
        "requests/s": rate(now.requests_per_s),
        "p50": duration(None if now.p50_s is None else now.p50_s * 1e6),
        "p99": duration(None if now.p99_s is None else now.p99_s * 1e6),
        "failures/s": rate(now.failures_per_s),
    }


def _now(
    facts: Facts, model: ModelVersion, activity: Mapping[Key, ModelRates], **more: str
) -> dict[str, str]:
    """Return what a model version does now, as texts by their names."""
    rates = _rates(activity.get(_key(model)))
    return {**rates, **more, "waiting": str(facts.waiting(model))}


def _phases(sums: Statistics) -> dict[str, str]:
    """Return the mean time of each phase of a request, since the server's start."""
    phases = {"queue": sums.queue, "preparing": sums.prepare, "compute": sums.compute}
    return {
        f"mean {name}": duration(phase.ns / 1000 / sums.queue.count if sums.queue.count else None)
        for name, phase in phases.items()
    }


async def one_model(facts: Facts, name: str, version: str) -> Page:
    versions = await facts.queries.versions(name)
    model = await facts.queries.find(name, version)
    schedules = await facts.queries.schedules(model)
    activity = await facts.activity()
    served = facts.served(model)
    shown = {
        "model": model,
        "versions": versions[::-1],
        "now": _now(facts, model, activity, **_phases(facts.statistics(model))),
        "served": served,
        "why": _why(model, served, schedules),
        "latency": latency_svg(facts.rates.points(_key(model))),
        "lengths": "" if served is None else _lengths(served),
        "inputs": [] if served is None else list(_inputs(served)),
        "planner": plan_names([model.options.planner.text])[model.options.planner.text],
        "precision": _precision(model),
        "plans": plan_names(placed.schedule.planner for placed in schedules),
        "schedules": [
            (placed, _serves(placed), facts.other_shapes(model, placed)) for placed in schedules
        ],
        "no_schedule": _no_schedule(model),
        "comparisons": [
            _candidates(placed, facts.other_shapes(model, placed))
            for placed in schedules
            if _plans(placed)
        ],
        "jobs": [job for job in await facts.jobs(name) if job.version == model.version],
    }
    title = f"{model.name} version {model.version}"
    return Page("model.html", title, shown, "Models", is_live=True)


def _lengths(served: ModelReplica) -> Markup:
    axis, rows, scheduled = served.lengths.axis, served.lengths.rows, served.scheduled_lengths
    if axis is None or not (rows or scheduled):
        return Markup()
    return lengths_svg(axis.axis, rows, scheduled)


def _why(model: ModelVersion, served: ModelReplica | None, schedules: Sequence[Placed]) -> str:
    """Return what serves, and why, in one line: at the batch size that most batches have."""
    if served is None:
        return f"nothing: this version is {model.state.word}"
    if not schedules:
        if any(text.startswith(SERVED_WHOLE) for text in served.warnings):
            return "ONNX Runtime, as Braid's own plans cannot run all operators of this model"
        return f"{IN_SEQUENCE}, which was not compared with other engines yet"
    placed = max(schedules, key=lambda each: sum(row.runs for row in each.contest.rows))
    schedule, device, contest = placed.schedule, placed.device, placed.contest
    seen, engine = schedule.provenance, RUNTIMES.get(schedule.runtime, OWN)
    if not seen.promoted:
        engine = OWN
    in_sequence = not seen.promoted or runs_in_sequence(schedule.plan)
    what = IN_SEQUENCE if engine == OWN and in_sequence else engine
    if len(schedule.candidates) > 1 and seen.promoted:
        size = schedule.key.batch_size
        is_open = not (contest.is_decided or contest.is_pinned)
        why = "; the best estimate serves until then" if is_open else ""
        return f"{contest.text.removeprefix(SERVES)}{why}; at batch size {size} on {device}"
    best: dict[str, float] = {}
    for each in seen.candidates:
        of = RUNTIMES.get(each.name, OWN)
        if each.latency_us is not None and not each.remark and of != engine:
            best[of] = min(each.latency_us, best.get(of, math.inf))
    others = "".join(f"; {of} {duration(us)}" for of, us in best.items())
    compared = f"the fastest of {len(seen.candidates)} candidates at registration"
    reason = seen.reason or (compared if others else "no other engine was compared")
    at = f"{duration(schedule.serving_us)} at batch size {schedule.key.batch_size} on {device}"
    return f"{what}, {at}{others}; {reason}"


def _inputs(served: ModelReplica) -> Iterator[TryInput]:
    """Yield the inputs of the form that tries a model, in the shape that it is scheduled for."""
    for name, spec in served.profiled.inputs:
        shape = [extent for extent in spec.shape if isinstance(extent, int)]
        yield TryInput(name, served.inputs[name], shape, _layout(spec.dtype, shape))


def _layout(dtype: str, shape: Sequence[int]) -> str:
    """Return how an input holds images; "" if it does not look like one that does."""
    if len(shape) == 4 and dtype in (*FLOATS, "UINT8"):
        if shape[1] in CHANNELS:
            return "NCHW"
        if shape[3] in CHANNELS:
            return "NHWC"
    return ""


def _precision(model: ModelVersion) -> str:
    accepted = model.options.accepted_error
    also = "" if accepted is None else f", errors up to {accepted:.2g} accepted"
    samples = ", measured on samples" if model.options.samples else ""
    return model.options.precision + also + samples


def _no_schedule(model: ModelVersion) -> str:
    if model.state.has_failed:
        return f"no schedule: this version has {model.state.word}"
    if model.state is ModelStatus.SERVING:
        return "no schedule yet: the sequential plan serves"
    return "no schedule yet"


def _serves(placed: Placed) -> str:
    provenance = placed.schedule.provenance
    if not provenance.promoted:
        return f"sequential: {provenance.reason}"
    contest = placed.contest
    is_asked = contest.has_runs or contest.is_pinned or not contest.state
    unasked = "" if is_asked else "no requests yet"
    engine = RUNTIMES.get(contest.rows[0].name, "own plan")
    return ", ".join(filter(None, (engine, contest.state, unasked)))


def _plans(placed: Placed) -> Sequence[Contender]:
    return placed.schedule.provenance.candidates


def _candidates(placed: Placed, shapes: str) -> dict[str, object]:
    """Return all plans that were measured for one batch size on one device, the fastest first."""
    plans, contest, at = _plans(placed), placed.contest, shapes and f" at {shapes}"
    schedule, since = placed.schedule, ""
    if contest.is_pinned:
        since = "; since then a plan was pinned"
    elif contest.is_decided or any(row.pairs for row in contest.rows):
        since = f"; since then runs in service choose: {contest.state}"
    return {
        "title": f"Candidates compared, batch {schedule.key.batch_size}{at}, {placed.device}",
        "longest_us": max(plan.latency_us or 0.0 for plan in plans),
        "plans": sorted(plans, key=lambda plan: plan.latency_us or math.inf),
        "names": plan_names(name for plan in plans for name in (plan.name, *plan.also)),
        "serving": schedule.led_by(contest.rows[0].name).serving,  # None: not recorded
        "since": since,  # what has chosen since; empty: nothing has
    }
