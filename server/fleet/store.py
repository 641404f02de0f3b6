"""A store that several servers share: it also keeps leases, claims of jobs, nodes and objects.

Store.register ──job added──> its lease, in the same transaction
FleetStore.fenced(lease) ──> the same store, whose writes are refused once the lease is lost
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from braid.core.errors import DatabaseUnavailable
from braid.server.fleet.records import Claimant, FilesGone, Lease
from braid.server.fleet.tables import claims, objects, wanted
from braid.server.fleet.tables import leases as leases_table
from braid.server.fleet.tables import nodes as nodes_table
from braid.server.fleet.tables.results import ResultRows
from braid.server.store.records import JobRecord, ModelVersion, NodeRecord, Registration, ShownNode
from braid.server.store.store import Store, read_method, write_method
from braid.server.store.tables import jobs as jobs_table

AWAY_SECONDS = 0.5
"""Pause between two tries of work under a lease while the database is away."""

P = ParamSpec("P")
T = TypeVar("T")


def _node_method(
    change: Callable[Concatenate[Connection, Claimant, P], T], tells: str = ""
) -> Callable[Concatenate[FleetStore, P], T]:
    """Method of the store that makes one change as this node, see its docstring."""

    @wraps(change)
    def method(store: FleetStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        claimant = store._claimant
        assert claimant is not None, "join comes first"
        return store._transactions.write(
            lambda connection: change(connection, claimant, *args, **kwargs), tells
        )

    return method


class FleetStore(Store):
    """Store of one node among several. Before ``join`` it works as that of a single server."""

    _fences: tuple[Lease, ...] = ()
    _claimant: Claimant | None = None  # this node
    _needs_objects = False

    wanted = read_method(wanted.wanted)

    def _results(self, connection: Connection) -> ResultRows:
        return ResultRows(connection)

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking method on the store's thread. It runs even if the caller is cancelled.

        For work under a lease it is run again until the database answers, or the lease is lost.
        """
        while True:
            try:
                return await super().call(function, *args, **kwargs)
            except DatabaseUnavailable:
                if not self._fences:
                    raise
            await asyncio.sleep(AWAY_SECONDS)

    # Nodes.

    def join(self, node: NodeRecord, lease_seconds: float) -> None:
        """Become one of the nodes that share the database; new jobs have leases from now on."""

        def joined(connection: Connection) -> None:
            nodes_table.join(connection, node)
            jobs_table.forget_oldest(connection, self._kept_jobs)
            leases_table.forget_jobs(connection)

        self._transactions.write(joined, "nodes")
        self._claimant = Claimant(node.id, lease_seconds)

    def leave(self, node_id: str, held: Collection[Lease]) -> None:
        """Let other nodes have what this one worked on, now."""

        def left(connection: Connection) -> None:
            leases_table.release(connection, *held)
            nodes_table.leave(connection, node_id)

        self._transactions.write(left, "jobs")

    def listed_nodes(self) -> list[ShownNode]:
        """All nodes that share the database, with their jobs; none before this one has joined."""
        if self._claimant is None:
            return []
        seconds = self._claimant.seconds
        return self._transactions.read(lambda connection: nodes_table.listed(connection, seconds))

    # Leases.

    def fenced(self, lease: Lease) -> Self:
        """The same store, whose writes raise TakenOver once another node has the lease.

        Its ``call`` waits while the database is away.
        """
        other = copy.copy(self)
        other.is_revocable = True
        other._fences = (*self._fences, lease)
        other._transactions = self._transactions.guarded(partial(_check, other._fences))
        return other

    acquire = _node_method(leases_table.acquire)
    release = write_method(leases_table.release, "leases")

    # Jobs.

    jobs_to_claim = read_method(claims.unfinished)
    models_lacking_job = read_method(claims.lacking)
    request_cancel = write_method(claims.request_cancel, "jobs")
    claim_job = _node_method(claims.claim)
    add_job_for_devices = _node_method(claims.add_for_devices, "jobs")

    def end_job(self, job: JobRecord) -> ModelVersion | None:
        """Store a job's last state; under a lease, that of the job, it ends with it.

        Returns the model as it is now, or None if it was deleted. Raises TakenOver: the job is
        another node's. ResourceExhausted: the database's disk is full; nothing is stored.
        """
        if not self._fences:
            return super().end_job(job)
        assert job.state.has_ended
        self._replacing.pop(job.id, None)
        lease = self._fences[0]
        return self._transactions.write(
            lambda connection: claims.end(connection, job, lease), "jobs"
        )

    def _granted(self, connection: Connection, registration: Registration) -> Registration:
        if self._claimant is None:
            return registration
        return claims.leased(connection, self._claimant, registration)

    def _last_job(
        self, connection: Connection, model: ModelVersion, device_keys: str
    ) -> tuple[JobRecord, str] | None:
        if self._claimant is None:
            return super()._last_job(connection, model, device_keys)
        return claims.under_way(connection, model, device_keys)

    # Objects of the shared files.

    find_objects = read_method(objects.find)
    owner = read_method(objects.owner)
    begin_object = write_method(objects.begin)
    finish_object = write_method(objects.finish)
    hold_object = write_method(objects.hold)
    mark_object = write_method(objects.mark)
    touch_objects = write_method(objects.touch)
    takes_sweep = write_method(objects.takes_sweep)
    condemn_objects = write_method(objects.condemn)
    forget_objects = write_method(objects.forget)
    identity = write_method(objects.identity)

    def need_objects(self) -> None:
        """From now on, store no row whose files are not in the shared files."""
        self._needs_objects = True

    def _hold_files(self, connection: Connection, model: ModelVersion) -> None:
        """Let no sweep take what the rows of this transaction need.

        Raises FilesGone: one has taken what was put of this upload.
        """
        if not self._needs_objects:
            return
        upload, samples = model.sha256, model.options.samples
        held = objects.hold(connection, f"uploads/{upload}")
        if not held and self.folder.upload(upload).is_file():
            raise FilesGone
        objects.hold(connection, f"artefacts/{model.artefact}")  # of bytes imported before
        held = not samples or objects.hold(connection, f"samples/{samples}")
        if not held and self.folder.sample_file(samples).is_file():
            raise FilesGone

    def _hold_artefact(self, connection: Connection, model: ModelVersion) -> None:
        if self._needs_objects and not self._has_artefact(connection, model):
            raise FilesGone

    def _has_artefact(self, connection: Connection, model: ModelVersion) -> bool:
        if not self._needs_objects:
            return super()._has_artefact(connection, model)
        return objects.hold(connection, f"artefacts/{model.artefact}")


def _check(fences: tuple[Lease, ...], connection: Connection) -> None:
    """Raise TakenOver unless all leases are still this node's, to the end of the transaction."""
    for lease in fences:
        leases_table.check(connection, lease)
