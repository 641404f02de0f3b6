"""Leases: which node works on what, where several nodes share a store.

    acquire ──> Lease(name, fence) ──renewed by beats──> released with the job's end
                                   └──not renewed in time──> another node's, with a higher fence

A lease lasts by the database's clock. Its fence is checked inside each transaction of
``FleetStore.fenced``: a node that was paused, or cut off, writes nothing once another has taken
over.
"""

from dataclasses import dataclass, field
from time import monotonic

from braid.core.errors import StoreUnavailable
from braid.server.store.records import JobRecord, ModelVersion

JOB, SCHEDULE, DELETE = "job:", "schedule:", "delete:"
"""Beginnings of names: of a whole job by its id; of measuring one schedule key by its id; of the
deletion of a model version."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A node that takes leases, and the seconds that one lasts unless it is renewed."""

    node: str  # nodes.id, one a process
    seconds: float


@dataclass(frozen=True, slots=True)
class Lease:
    """Right to work on what a name stands for, valid while no other has a higher fence."""

    name: str
    fence: int
    asked_at: float = field(default_factory=monotonic, compare=False)  # before it was given


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job that has not ended, and whether there is a node that works on it."""

    job: JobRecord
    cancel_requested: bool
    is_free: bool  # its lease was given back, or never given
    has_expired: bool  # or was not renewed in time


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job whose lease was taken over, as its last owner left it."""

    job: JobRecord
    model: ModelVersion | None  # None: deleted
    lease: Lease
    cancel_requested: bool


class SharedFilesAway(StoreUnavailable):
    """The shared files cannot be reached, or fail."""

    retry_after_s = 5.0

    def __init__(self) -> None:
        super().__init__(
            "the shared files (BRAID_FILES) do not answer; what serves goes on, try again"
        )


class FilesGone(StoreUnavailable):
    """Shared files that were put are gone again before rows needed them: put them once more."""

    def __init__(self) -> None:
        super().__init__("the shared files of this model were removed meanwhile; try again")
