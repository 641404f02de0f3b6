"""Leases: which node works on what, where several nodes share a store.

    acquire ──> Lease(name, fence) ──renewed by beats──> released with the job's end
                                   └──not renewed in time──> another node's, with a higher fence

A lease lasts by the database's clock. Its fence is checked inside each transaction of
``Store.fenced``: a node that was paused, or cut off, writes nothing once another has taken over.
"""

from __future__ import annotations

from dataclasses import dataclass

from braid.server.store.records import JobRecord, Lease, ModelVersion

JOB, SCHEDULE, DELETE = "job:", "schedule:", "delete:"
"""Beginnings of names: of a whole job by its id; of measuring one schedule key by its id; of the
deletion of a model version."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A server that shares the database with others."""

    id: str  # one a process
    address: str  # HOST:PORT that others reach it by
    device_keys: str
    version: str  # of Braid
    started_at: float = 0.0  # by the database's clock, like ``beat_at``
    beat_at: float = 0.0
    is_alive: bool = True  # its leases last


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node, and what it works on."""

    node: NodeRecord
    beat_age_s: float  # by the database's clock
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job that has not ended, and whether there is a node that works on it."""

    job: JobRecord
    device_keys: str
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
