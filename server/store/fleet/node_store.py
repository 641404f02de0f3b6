"""Part of a store for one node among several: its leases, its claims of jobs, the list of nodes.

Only of use where several nodes share the database; ``join`` is never called otherwise, and nothing
here is run.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from functools import partial
from typing import Self

from sqlalchemy import Connection

from braid.server.store.database.transactions import Guard
from braid.server.store.fleet.leases import ClaimedJob, ListedNode, NodeRecord, UnfinishedJob
from braid.server.store.records import (
    Claimant,
    JobRecord,
    Lease,
    ModelVersion,
    Registration,
)
from braid.server.store.registrations import Registrations
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables.fleet import claims
from braid.server.store.tables.fleet import leases as leases_table
from braid.server.store.tables.fleet import nodes as nodes_table


class NodeStore(Registrations):
    """Leases, claims and nodes of a store. Used by the store's thread."""

    _fences: tuple[Lease, ...] = ()

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
            leases_table.release(connection, held)
            nodes_table.leave(connection, node_id)

        self._transactions.write(left, "jobs")

    def nodes(self) -> list[NodeRecord]:
        """All nodes that share the database, by id; none on a machine of its own."""
        if self._claimant is None:
            return []
        seconds = self._claimant.seconds
        return self._transactions.read(lambda connection: nodes_table.every(connection, seconds))

    def listed_nodes(self) -> list[ListedNode]:
        """All nodes that share the database, with their jobs; none on a machine of its own."""
        if self._claimant is None:
            return []
        seconds = self._claimant.seconds
        return self._transactions.read(lambda connection: nodes_table.listed(connection, seconds))

    # Leases.

    def fenced(self, lease: Lease) -> Self:
        """This store for work under a lease: no write, once another node has taken that over.

        Raises LeaseLost then. Its ``call`` waits while the database is away.
        """
        other = self.guarded(partial(_check, (*self._fences, lease)))
        other._fences = (*self._fences, lease)
        return other

    def guarded(self, guard: Guard) -> Self:
        """This store, whose writes ``guard`` may refuse: it looks at a lease, and locks it."""
        other = copy.copy(self)
        other._transactions = self._transactions.guarded(guard)
        return other

    @property
    def is_fenced(self) -> bool:
        """True if its writes are made under a lease."""
        return bool(self._fences)

    def acquire(self, name: str, takes_expired: bool = True) -> Lease | None:
        """Take a lease that no node has; None: one has it.

        Without ``takes_expired``, one that was not renewed in time is waited for.
        """
        claimant = self._as_node()
        return self._transactions.write(
            lambda connection: leases_table.acquire(
                connection, name, claimant, takes_expired=takes_expired
            )
        )

    def release(self, lease: Lease) -> None:
        """End a lease now, unless another node has it."""
        self._transactions.write(
            lambda connection: leases_table.release(connection, [lease]), "leases"
        )

    # Jobs.

    def jobs_to_claim(self) -> list[UnfinishedJob]:
        """Jobs that have not ended, oldest first, and whether a node works on each."""
        return self._transactions.read(claims.unfinished)

    def claim_job(
        self, job_id: str, device_keys: str, takes_expired: bool = True
    ) -> ClaimedJob | None:
        """Take over a job that no node works on; None if it is not for these devices.

        Without ``takes_expired``, a lease that was not renewed in time is waited for.
        """
        claimant = self._as_node()
        return self._transactions.write(
            lambda connection: claims.claim(
                connection, claimant, job_id, device_keys, takes_expired
            )
        )

    def end_leased_job(self, job: JobRecord, lease: Lease) -> ModelVersion | None:
        """Store a job's last state, and end its lease; returns the model, None if deleted.

        To be called on the store that is fenced by the lease.

        Raises:
            LeaseLost: the job is another node's.
        """
        assert job.state.has_ended
        assert lease in self._fences
        self._replacing.pop(job.id, None)
        return self._transactions.write(
            lambda connection: claims.end(connection, job, lease), "jobs"
        )

    def request_cancel(self, job_id: str) -> JobRecord:
        """Ask the owner of a job to end it, unless it has ended; returns it as it is.

        Raises:
            JobNotFound: there is none.
        """
        return self._transactions.write(
            lambda connection: claims.request_cancel(connection, job_id), "jobs"
        )

    def models_lacking_job(self, device_keys: str) -> list[ModelVersion]:
        """Models that serve, and had no job for these devices, or an unsuccessful one."""
        return self._transactions.read(lambda connection: claims.lacking(connection, device_keys))

    def add_job_for_devices(self, name: str, version: int, device_keys: str) -> Registration | None:
        """Add a job for a model that serves, if these devices had none; None: none is due."""
        claimant = self._as_node()
        return self._transactions.write(
            lambda connection: claims.add_for_devices(
                connection, claimant, name, version, device_keys
            ),
            "jobs",
        )

    def _as_node(self) -> Claimant:
        assert self._claimant is not None, "join comes first"
        return self._claimant


def _check(fences: tuple[Lease, ...], connection: Connection) -> None:
    """Raise LeaseLost unless all leases are still this node's, to the end of the transaction."""
    for lease in fences:
        leases_table.check(connection, lease)
