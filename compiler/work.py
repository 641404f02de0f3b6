"""One compilation: its arguments, and what follows from them for every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from braid.compiler.device import Device
from braid.compiler.imported_model import ImportedModel
from braid.compiler.planner import Planner
from braid.compiler.report import Report, Retrying
from braid.compiler.results import Cache
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.compiler.samples import NO_SAMPLES, GivenSamples
from braid.core.graph import OpGraph
from braid.core.precision import (
    AUTO,
    AUTO_TOLERANCE,
    FP32,
    INT8,
    PRECISION_OF,
    TOLERANCES,
    allowed_in,
)
from braid.core.program import ProgramKey
from braid.core.quantisation import Quantisation
from braid.core.runtimes import runtimes_in
from braid.scheduler.options import PORTFOLIO

MOST_DEATHS = 3
"""Deaths of the worker in a row that leave a runtime out: one may be by chance."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How to compile, beside what the model asks for."""

    planner: Planner
    tolerance: float  # of outputs in FP32, relative to the largest element of each
    samples: GivenSamples = NO_SAMPLES
    side_by_side: bool = True  # whether runs side by side are measured, which then serve
    is_brief: bool = False  # a few runs of the sequential plan and of other runtimes, no search
    retry: RetryWhileRestarting = field(default_factory=lambda: RetryWhileRestarting(RetryPauses()))


@dataclass(frozen=True, slots=True)
class Work:
    """One batch size of a model on one device, and what it is scheduled with."""

    imported: ImportedModel
    device: Device
    batch_size: int
    options: CompileOptions
    cache: Cache
    report: Report
    quantisation: Quantisation | None = None  # of INT8; None: that takes no part
    left_out: dict[str, str] = field(default_factory=dict)  # precision or runtime -> why

    def program(self, precision: str = "") -> ProgramKey:
        """Program on its usual kernels; in the usual precision if that is empty."""
        usual = self.imported.program(self.batch_size, precision)
        if usual.precision != INT8 or self.quantisation is None:
            return usual
        return replace(usual, quantisation=self.quantisation.text)

    @property
    def samples(self) -> GivenSamples:
        return self.options.samples

    @property
    def is_auto(self) -> bool:
        """True if the precision is to be chosen."""
        return self.imported.options.precision == AUTO or bool(self.own_precision)

    @property
    def own_precision(self) -> str:
        """Precision of the model's file, if the device has it and no other was asked; or empty.

        Then it and FP32 are compared, as by ``auto``.
        """
        options = self.imported.options
        narrow = PRECISION_OF.get(self.imported.report.narrow_type, "")
        is_usual = options.precision == FP32 and options.accepted_error is None
        return narrow if is_usual and narrow in self.device.precisions else ""

    @property
    def other_precisions(self) -> Sequence[str]:
        """Precisions that are compared with FP32."""
        if precision := self.own_precision:
            return (precision,)
        return [name for name in self.device.precisions if name != FP32]

    @property
    def is_portfolio(self) -> bool:
        return self.imported.options.planner.planner == PORTFOLIO

    @property
    def rows_apart(self) -> int:
        """Rows of a batch, if the import proved that none depends on another; else 0."""
        batch = self.imported.report.batch
        apart = batch is not None and not batch.alone and {*batch.outputs.values()} == {0}
        return self.batch_size if apart else 0

    @property
    def retry(self) -> RetryWhileRestarting:
        """Retries of calls to the device, which are reported.

        As long as other runtimes take part, the worker may die of one.
        """
        most = MOST_DEATHS if self.other_runtimes else None
        return replace(
            self.options.retry, report=lambda what: self.report(Retrying(what)), most_deaths=most
        )

    @property
    def other_runtimes(self) -> Sequence[str]:
        """Other runtimes that take part where they can."""
        offered = self.device.runtimes if self.is_portfolio else ()
        return [name for name in offered if name not in self.left_out]

    def runtimes(self, precision: str) -> tuple[str, ...]:
        return runtimes_in(precision, self.other_runtimes)

    @property
    def tolerated_error(self) -> float:
        """Allowed error of outputs against FP32, relative to the largest element of each."""
        accepted, precision = self.imported.options.accepted_error, self.imported.options.precision
        return TOLERANCES.get(precision, self.options.tolerance) if accepted is None else accepted

    def tolerated_in(self, precision: str) -> float:
        """Allowed error of one of the precisions that ``auto`` chooses from.

        FP32 is held to what it is held to without ``auto``, whatever error is accepted.
        """
        if precision == FP32:
            return self.options.tolerance
        accepted = self.imported.options.accepted_error
        return AUTO_TOLERANCE if accepted is None else accepted

    def tolerance(self, precision: str, graph: OpGraph) -> float:
        """Allowed error of outputs in a precision, relative to the largest element of each."""
        narrow, accepted = self.imported.report.narrow_type, self.imported.options.accepted_error
        if not self.is_auto:
            allowed = self.tolerated_error
            return allowed if accepted is not None else allowed_in(allowed, graph, narrow)
        allowed = self.tolerated_in(precision)
        is_usual = precision in (FP32, self.own_precision)
        return allowed_in(allowed, graph, narrow) if is_usual else allowed
