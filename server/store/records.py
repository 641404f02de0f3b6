"""Records that the store keeps: model versions, jobs, registrations."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest

DEVICE_KEYS_SEPARATOR = " | "
"""Separator of device keys in a joined string."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_model_name(name: str) -> None:
    """Raise InvalidRequest unless ``name`` may be a model's: it will stand in logs and labels."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"model name {name[:130]!r} is not 1 to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )


class ModelStatus(enum.Enum):
    """State of a model version. Values are those of the database."""

    LOADING = "LOADING"  # registered; its job has not made it serve yet
    SERVING = "SERVING"  # answers requests, at least with its sequential plan
    FAILED = "FAILED"  # never served: its import failed or was cancelled
    DAMAGED = "DAMAGED"  # served, until its artefact was lost; FAILED on the wire
    UNLOADED = "UNLOADED"  # served, and was told not to; stays so until it is loaded again
    DRAINING = "DRAINING"  # being deleted; takes no new requests

    @property
    def word(self) -> str:
        """The state as users read it."""
        return self.value.lower()

    @property
    def has_failed(self) -> bool:
        """True if only registering the file again can make it serve."""
        return self in (ModelStatus.FAILED, ModelStatus.DAMAGED)


class JobStatus(enum.Enum):
    """State of a job. Values are those of the wire and of the database."""

    QUEUED = "QUEUED"  # waits for its turn, also after a restart of the server
    IMPORTING = "IMPORTING"  # upload to artefact, then loaded and served sequentially
    PROFILING = "PROFILING"  # stages are measured on the device
    SCHEDULING = "SCHEDULING"  # the planner searches
    VERIFYING = "VERIFYING"  # the plan is compared with the sequential one
    READY = "READY"  # ended: every batch size has its schedule
    UNSCHEDULED = "UNSCHEDULED"  # ended: the model serves; ``message``: why not as scheduled
    FAILED = "FAILED"  # ended: ``message`` says what failed; the job never made the model serve
    CANCELLED = "CANCELLED"  # ended: by request; a model that served keeps its plans

    @property
    def word(self) -> str:
        """The state as users read it: the word that the details of its phase begin with."""
        return _WORDS.get(self, self.value.lower())

    @property
    def is_before_serving(self) -> bool:
        """True while the job has not made the model serve."""
        return self in (JobStatus.QUEUED, JobStatus.IMPORTING)

    @property
    def has_ended(self) -> bool:
        """True if the job never changes again."""
        return self in _ENDED

    @property
    def has_failed(self) -> bool:
        """True if the job ended without making the model serve; its message says why."""
        return self is JobStatus.FAILED


_WORDS = {
    JobStatus.PROFILING: "measuring",
    JobStatus.SCHEDULING: "searching",
    JobStatus.VERIFYING: "comparing",
}
_ENDED = frozenset({JobStatus.READY, JobStatus.UNSCHEDULED, JobStatus.FAILED, JobStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model: these bytes, scheduled for these options."""

    name: str
    version: int  # from 1, never used again for this name
    sha256: str  # of the uploaded file
    size_bytes: int
    options: ModelOptions
    state: ModelStatus = ModelStatus.LOADING
    message: str = ""  # why it FAILED, or SERVES without a schedule
    created_unix: float = 0.0
    own_artefact: str = ""  # key of the artefact, if its samples gave it one of its own

    @property
    def artefact(self) -> str:
        """Key of the artefact that serves."""
        return self.own_artefact or self.sha256

    def is_same(self, other: ModelVersion) -> bool:
        """True if another record is of the same version, bytes and options."""
        return _identity(self) == _identity(other)


_identity = attrgetter("name", "version", "sha256", "options")


@dataclass(frozen=True, slots=True)
class WhichSchedules:
    """Schedules of one model version: on some devices, of one batch size or of all."""

    device_keys: Sequence[str]
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The work that takes one model version from upload to schedules."""

    id: str
    model: str
    version: int
    state: JobStatus = JobStatus.QUEUED
    progress: float = 0.0  # over the whole job; never goes back
    detail: str = ""  # what is being done now, for people
    eta_seconds: float = -1.0  # until the job ends; negative while unknown
    done: int = 0  # of ``total``, in the present phase
    total: int = 0
    message: str = ""
    created_unix: float = 0.0
    updated_unix: float = 0.0

    def __post_init__(self) -> None:
        assert 0.0 <= self.progress <= 1.0, self.progress


@dataclass(frozen=True, slots=True)
class ReceivedUpload:
    """File that was received whole and checked; on disk under its temporary name."""

    path: Path | None  # None: there is none, as these bytes were imported before
    sha256: str
    size_bytes: int
    samples: ReceivedSamples | None = None  # that came with it


@dataclass(frozen=True, slots=True)
class ReceivedSamples:
    """File of samples that was received and checked by itself; on disk under its temporary name."""

    path: Path
    digest: str  # of its content


@dataclass(frozen=True, slots=True)
class Registration:
    """Result of a registration: the model version and its job."""

    model: ModelVersion
    job: JobRecord
    is_new_job: bool  # False: the same registration was made before, ``job`` is that one's
    replaces: bool = False  # a version under this number serves other bytes until these do
    grant: object = None  # for the registry, where servers share the store: see ``jobs.registry``


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A server that shares the database with others."""

    id: str  # one a process
    address: str  # HOST:PORT that others reach it by
    device_keys: str
    version: str  # of Braid
    started_at: float = 0.0  # by the database's clock, like ``beat_at``
    beat_at: float = 0.0
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class ShownNode:
    """A server, what it works on, and whether it is this one."""

    node: NodeRecord
    beat_age_s: float  # by the database's clock
    job_ids: tuple[str, ...]
    is_this: bool = False

    @property
    def device_keys(self) -> list[str]:
        return [key for key in self.node.device_keys.split(DEVICE_KEYS_SEPARATOR) if key]
