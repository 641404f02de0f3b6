"""Measurements: one type for each fact, from the engine's timers to the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from braid.core.errors import ImpossibleLatency
from braid.core.json_form import Tagged
from braid.core.runtimes import RUNTIMES, plan_text


def is_latency(latency_us: object) -> bool:
    """True if a latency is possible: a finite number above zero."""
    return isinstance(latency_us, int | float) and isfinite(latency_us) and latency_us > 0


def check_latency(latency_us: float | None) -> None:
    """Raise ImpossibleLatency unless it is a finite number above zero, or None: unknown."""
    if latency_us is not None and not is_latency(latency_us):
        raise ImpossibleLatency(latency_us)


class StageLatency(Tagged, frozen=True):
    """Latency of one stage, in microseconds: the median of repeated runs."""

    latency_us: float
    spread: float  # relative: (75th - 25th percentile) / median
    repeats: int

    def __post_init__(self) -> None:
        check_latency(self.latency_us)


@dataclass(frozen=True, slots=True)
class PlanMeasurement:
    """Measurement of a whole model under one plan, in turns with others in one run."""

    latency_us: float | None  # median; None: it took part in no round
    spread: float | None = None  # relative: (75th - 25th percentile) / median
    runs: int = 0
    ratios: tuple[float, ...] = ()  # sequential over this, one a turn that both ran in
    max_abs_error: float | None = None  # outputs against the fp32 reference
    max_rel_error: float | None = None  # relative to the largest element of each output
    problem: str = ""  # why it could not run
    activation_bytes: int | None = None  # memory planned for activations; None: not known
    turns_us: tuple[float, ...] = ()  # one a turn, of plans that stayed to the end
    top_agreement: float | None = None  # part of the samples whose top class is the reference's
    lost_in: str = ""  # unit that loses most of its numbers, of a plan that errs too much

    def __post_init__(self) -> None:
        for latency_us in (self.latency_us, *self.ratios, *self.turns_us):
            check_latency(latency_us)


@dataclass(frozen=True, slots=True)
class StageOverheads:
    """Latency of a stage beside its units' own work, in microseconds.

    For lower bounds, where a value that is too small is safe, but for ``stage_us``.
    """

    stage_us: float  # at least what any stage pays once; a value that is too large is safe
    group_us: float = 0.0  # what each group after the first adds to a stage
    launch_us: float = 0.0  # what one unit pays before it uses any resource


@dataclass(frozen=True, slots=True)
class UnitProfile:
    """Use of the device by one unit.

    ``work_us`` has one entry for each shared resource (multiprocessors or cores, memory): the
    time for which the unit would occupy the whole resource. Running units side by side can hide
    latency but not work, so no stage is faster than the work of its units summed.
    """

    demand: float = 0.0  # as one number: bytes moved, as measured by an engine (Opara)
    memory_bound: bool = False  # limited by memory rather than by arithmetic (Opara)
    work_us: tuple[float, ...] = ()


class DeviceFacts(Tagged, frozen=True):
    """Facts besides stage latencies about a device and a static graph. Each may be missing."""

    overheads: StageOverheads | None = None
    profiles: tuple[UnitProfile, ...] = ()  # one a unit, or none
    merge_groups: tuple[tuple[int, ...], ...] = ()  # units that can all become one kernel
    threads: int = 1  # groups that can run side by side
    engines: Mapping[str, str] = {}  # that parts of the model may run in, and their versions
    rows: int = 0  # of the batch; 0: they may depend on each other


@dataclass(frozen=True, slots=True)
class Speed:
    """Ratio of the sequential plan's latency to another's; above 1 the other is faster.

    The median of ratios of turns in which both ran, and the interval of the sign test. It is not
    the quotient of two medians: those are of runs that lie apart, on a machine whose speed wanders.
    """

    median: float
    least: float | None = None  # of the interval; None: earlier versions did not record it
    most: float | None = None

    @property
    def is_faster(self) -> bool:
        """True if the whole interval is above 1: faster without doubt."""
        return self.least is not None and self.least > 1.0


@dataclass(frozen=True, slots=True)
class SideBySideRuns:
    """Throughput of runs on equal parts of a device's threads, beside the plan on all threads."""

    count: int  # runs at once, each on its part of the threads
    runtime: str  # of RUNTIMES; empty: under the sequential plan
    latency_us: float  # of one of them, while all parts run
    gain: Speed  # runs a second over those of the plan that serves

    def __post_init__(self) -> None:
        check_latency(self.latency_us)

    @property
    def pays(self) -> bool:
        return self.gain.is_faster


def size_text(size_bytes: float) -> str:
    """Text of a size in a suitable unit: ``512 B``, ``4.7 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def rival_text(ratio: float, name: str) -> str:
    """Text of a speed beside the best other runtime: "1.04x ONNX Runtime"; "-": there is none.

    ``ratio``: latency of the other over that of what serves.
    """
    other = plan_text(name) if name.startswith(tuple(RUNTIMES)) else "own plan"
    return f"{ratio:.2f}x {other}" if name else "-"


def speed_text(speed: Speed | None, unknown: str = "-") -> str:
    """Text of a speed: ``1.031x (1.012 to 1.048)``; without an interval the median alone."""
    if speed is None:
        return unknown
    if speed.least is None or speed.most is None or speed.least == speed.most:
        return f"{speed.median:.3f}x"
    return f"{speed.median:.3f}x ({speed.least:.3f} to {speed.most:.3f})"


def interval_text(low: float | None, high: float | None, unknown: str = "-") -> str:
    """Text of the interval of a ratio: ``0.981 to 1.012``."""
    return unknown if low is None or high is None else f"{low:.3f} to {high:.3f}"


def side_by_side_text(runs: SideBySideRuns | None, unknown: str = "-") -> str:
    """Text of runs side by side: ``2 at once, 6.37 ms each: 1.251x (1.090 to 1.352) runs/s``."""
    if runs is None:
        return unknown
    where = RUNTIMES.get(runs.runtime, "sequential")
    text = f"{runs.count} at once ({where}), {runs.latency_us / 1e3:.2f} ms each: "
    text += f"{speed_text(runs.gain)} the runs a second"
    return text if runs.pays else f"{text}; not used, as it is not more without doubt"


def error_text(max_rel_error: float | None, samples: int, top_agreement: float | None) -> str:
    """Text of an error: ``0.0042 on 16 samples, the same top class in 100.0%``."""
    if max_rel_error is None:
        return "-"
    where = f"on {samples} samples" if samples else "on seeded inputs"
    same = "" if top_agreement is None else f", the same top class in {top_agreement:.1%}"
    return f"{max_rel_error:.2g} {where}{same}"


def spread_text(spread: float | None, unknown: str = "-") -> str:
    """Text of the spread of runs: ``3.1%``."""
    return unknown if spread is None else f"{spread:.1%}"
