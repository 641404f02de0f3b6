"""Jobs that this process works on, each with its task and its watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from braid.server.jobs.interfaces import CheckImported, JobObserver
from braid.server.store.records import JobRecord, JobStatus, ModelVersion
from braid.server.store.store import Store


class LiveJob:
    """A job that has not ended, with its task and its watchers. Owned by the runner."""

    def __init__(
        self,
        job: JobRecord,
        model: ModelVersion,
        store: Store,
        check: CheckImported | None = None,
        replaces: bool = False,
    ) -> None:
        self.job = job
        self.model = model
        self.store = store  # that refuses writes once the job is another server's
        self.check: CheckImported = check or (lambda imported: None)
        self.replaces = replaces  # a version serves other bytes, until these do
        self.grant: object = None  # for the registry
        self.changed = asyncio.Event()  # set, and replaced, at each change
        self.task: asyncio.Task[None] | None = None
        self.canceller: asyncio.Task[None] | None = None
        self.is_ending = False  # the last state is decided, and being stored
        self.is_gone = False  # another server works on it; what is here is not its state any more
        self.saved_at = 0.0

    def publish(self, job: JobRecord) -> None:
        """Set a new state and wake the watchers; slow ones see the latest only."""
        self.job = job
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def is_of(self, name: str, version: int, only_replacing: bool = False) -> bool:
        """True if it is of a version, and if asked for, is to replace what that serves."""
        is_of = (self.job.model, self.job.version) == (name, version)
        return is_of and (self.replaces or not only_replacing)

    def is_outdated(self, model: ModelVersion) -> bool:
        """True if it is of a version that has other bytes or options now, and not to change it."""
        is_same = self.model.is_same(model)
        return self.is_of(model.name, model.version) and not (is_same or self.replaces)


class LiveJobs:
    """The live jobs of a process by id, and the numbers of all jobs by state."""

    def __init__(self, observer: JobObserver) -> None:
        self._observer = observer
        self._jobs: dict[str, LiveJob] = {}
        self._counts: dict[str, int] = {}

    def __iter__(self) -> Iterator[LiveJob]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def find(self, job_id: str) -> LiveJob | None:
        """A live job; None if it ended, or is another process's."""
        return self._jobs.get(job_id)

    def add(self, live: LiveJob) -> None:
        self._jobs[live.job.id] = live

    def remove(self, live: LiveJob) -> None:
        self._jobs.pop(live.job.id, None)

    def counted(self, counts: dict[str, int]) -> None:
        """Take the numbers of jobs by state, as they are stored."""
        self._counts = counts
        self._observer.jobs_counted(counts)

    def count(self, before: JobStatus | None, after: JobStatus) -> None:
        """Count the change of one job's state; ``before`` None: it is new."""
        if before is after:
            return
        if before is not None:
            self._counts[before.value] -= 1
        self._counts[after.value] += 1
        self._observer.jobs_counted(self._counts)
