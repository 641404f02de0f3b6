"""Which batch sizes pay, for a model that was registered without any.

1 ──> 2 ──> 4 ──> ...        as long as a row takes clearly less than in the sizes before
 └──> 16 ──> 128 ──> ...     where a batch hardly takes longer than one that is smaller

Each is measured briefly (``CompileOptions.is_brief``), so that the registration takes little
longer; ``braid schedule again`` searches plans of those that pay. What is measured in all is
bounded in time and memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import MAX_BATCH_SIZE
from braid.core.margins import SIZE_GAIN
from braid.core.schedule import Schedule

MISSES = 2
"""Sizes in a row that do not pay, after which no larger one is tried."""

HARDLY_LONGER, LEAP = 1.25, 8
"""After a batch that took at most this many times as long as the smaller one, so many times its
rows are tried, not twice as many: what lies between is padded at little cost."""

MOST_S = 4.0
"""Time for all sizes of a model on a device."""

MOST_RUN_US = 100_000.0
MOST_BYTES = 128 << 20
"""Latency and memory of a batch, as far as they follow from those of a smaller one."""


@dataclass(slots=True)
class LargerSizes:
    """Sizes to try, one after the other, and what was found of them."""

    imported: ImportedModel
    first: Schedule  # of one row
    clock: Callable[[], float] = monotonic
    _began: float = field(init=False)
    _step_began: float = field(init=False)
    _step_s: float = field(init=False, default=0.0)  # what the latest size took to measure
    _tried: tuple[int, float] = field(init=False)  # the latest size, and its latency
    _row_us: float = field(init=False)  # of the best size
    _misses: int = field(init=False, default=0)
    _factor: int = field(init=False, default=2)

    def __post_init__(self) -> None:
        self._began = self._step_began = self.clock()
        self._row_us = self.first.serving_us or 0.0
        self._tried = 1, self._row_us

    def next(self) -> int | None:
        last, last_us = self._tried
        size = min(self._factor * last, MAX_BATCH_SIZE)
        us = size / last * last_us
        self._step_began = self.clock()
        will_have_passed_s = self._step_began - self._began + size / last * self._step_s
        is_within = (
            0 < us <= MOST_RUN_US
            and size > last
            and size * self._row_bytes <= MOST_BYTES
            and will_have_passed_s <= MOST_S
        )
        return size if is_within and self._misses < MISSES else None

    def pays(self, schedule: Schedule) -> bool:
        us = schedule.serving_us
        if us is None or not schedule.provenance.promoted:
            return False
        return us / schedule.key.batch_size <= (1 - SIZE_GAIN) * self._row_us

    def tried(self, schedule: Schedule) -> None:
        self._step_s = self.clock() - self._step_began
        size, us = schedule.key.batch_size, schedule.serving_us
        if us is None:
            self._misses = MISSES
            return
        self._factor = LEAP if us <= HARDLY_LONGER * self._tried[1] else 2
        self._tried = size, us
        if self.pays(schedule):
            self._row_us, self._misses = us / size, 0
        else:
            self._misses += 1

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row's inputs, and of what is computed from them."""
        inputs = sum(spec.size_bytes for spec in self.imported.inputs(1).values())
        return inputs + (self.first.provenance.candidates[0].activation_bytes or 0)
