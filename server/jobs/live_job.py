"""A job that this process works on, with its task and its watchers."""

import asyncio

from braid.server.jobs.interfaces import CheckImported
from braid.server.store.records import JobRecord, ModelVersion
from braid.server.store.store import Store


class LiveJob:
    """A job that has not ended. Owned by ``RunningJobs``."""

    def __init__(
        self,
        job: JobRecord,
        model: ModelVersion,
        store: Store,
        check: CheckImported | None = None,
        replaces: bool = False,
        grant: object = None,
    ) -> None:
        """``grant``: for the registry."""
        self.job = job
        self.model = model
        self.store = store  # that refuses writes once the job is another server's
        self.check: CheckImported = check or (lambda imported: None)
        self.replaces = replaces  # a version serves other bytes, until these do
        self.grant = grant
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
