"""Leases and jobs of three nodes in any order of events, against a model of a few lines.

A step is a beat, a claim, a write, an end, a kill, or time that goes by in the database. Nodes keep
every lease they ever had, and try to write under it later: what a node does that stood still. Each
has a clock of its own.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import make_url, text

from braid.compiler.options import ModelOptions
from braid.core.errors import TakenOver
from braid.server.fleet.records import JOB, Claimant, Lease
from braid.server.fleet.store import FleetStore
from braid.server.fleet.tables import leases as leases_table
from braid.server.store.records import JobRecord, JobStatus, NodeRecord, ReceivedUpload
from tests.fleet.postgres import Postgres

pytestmark = pytest.mark.fleet

SECONDS = 10.0
MARGIN = SECONDS / 2 - 1  # of real time, which goes by as well
SKEWS = (0.0, 60.0, -3600.0)
MOST_JOBS = 3
NAMES = ["schedule:a"]

nodes = st.integers(0, len(SKEWS) - 1)
numbers = st.integers(0, 1000)


class LeaseMachine(RuleBasedStateMachine):
    stores: list[FleetStore]
    empty: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self.empty()
        stores = self.stores
        self.leases: list[list[Lease]] = [[] for _ in stores]  # all that a node ever had
        self.held: list[set[Lease]] = [set() for _ in stores]  # that it renews
        self.fences: dict[str, int] = {}  # the highest given, by name
        self.went_by = 0.0  # seconds of the database
        self.until: dict[str, float] = {}  # that a lease lasts, by name
        self.jobs: dict[str, JobRecord] = {}  # answered
        self.ends: dict[str, JobStatus] = {}
        for number in range(len(stores)):
            self.join(number)

    def join(self, node: int) -> None:
        with self.at(node) as store:
            store.join(NodeRecord(f"node-{node}", "", f"type-{node % 2}", ""), SECONDS)

    @contextmanager
    def at(self, node: int) -> Iterator[FleetStore]:
        """Run on a node, by its own clock."""
        real = time.time
        with patch("time.time", lambda: real() + SKEWS[node]):
            yield self.stores[node]

    def given(self, node: int, lease: Lease) -> None:
        assert lease.fence == self.fences.get(lease.name, 0) + 1, "fences grow one by one"
        assert self.until.get(lease.name, 0.0) <= self.went_by + MARGIN, "it was another's"
        self.fences[lease.name] = lease.fence
        self.until[lease.name] = self.went_by + SECONDS
        self.leases[node].append(lease)
        self.held[node].add(lease)

    def is_valid(self, lease: Lease) -> bool:
        return self.fences[lease.name] == lease.fence

    # What nodes do.

    @rule(node=nodes)
    def register(self, node: int) -> None:
        if len(self.jobs) == MOST_JOBS:
            return
        content = secrets.token_bytes(8)
        received = ReceivedUpload(None, hashlib.sha256(content).hexdigest(), len(content))
        with self.at(node) as store:
            made = store.register("m", received, ModelOptions(), f"type-{node % 2}")
        assert isinstance(made.grant, Lease)
        self.jobs[made.job.id] = made.job
        self.given(node, made.grant)

    @rule(node=nodes)
    def beat(self, node: int) -> None:
        claimant = Claimant(f"node-{node}", SECONDS)
        with self.at(node) as store, store.database.engine.begin() as connection:
            renewed = leases_table.renew(connection, self.held[node], claimant)
            connection.execute(
                text(
                    "update nodes set beat_at = extract(epoch from clock_timestamp()) where id=:i"
                ),
                {"i": claimant.node},
            )
        assert renewed == {lease for lease in self.held[node] if self.is_valid(lease)}
        self.held[node] = renewed
        self.until.update({lease.name: self.went_by + SECONDS for lease in renewed})

    @rule(node=nodes)
    def claim(self, node: int) -> None:
        with self.at(node) as store:
            for one in store.jobs_to_claim():
                if one.is_free or one.has_expired:
                    taken = store.claim_job(one.job.id, f"type-{node % 2}")
                    if taken is not None:
                        self.given(node, taken.lease)

    @rule(node=nodes, name=st.sampled_from(NAMES))
    def acquire(self, node: int, name: str) -> None:
        with self.at(node) as store:
            lease = store.acquire(name)
        if lease is not None:
            self.given(node, lease)
        else:
            assert self.until[name] > self.went_by, "it was free"

    @rule(node=nodes, which=numbers)
    def release(self, node: int, which: int) -> None:
        if found := self.leases[node]:
            lease = found[which % len(found)]
            with self.at(node) as store:
                store.release(lease)
            self.held[node].discard(lease)
            if self.is_valid(lease):
                self.until[lease.name] = self.went_by

    @rule(node=nodes, which=numbers, state=st.sampled_from(list(JobStatus)))
    def write(self, node: int, which: int, state: JobStatus) -> None:
        """Store a job's state, perhaps its last, under a lease that may be over long since."""
        found = [each for each in self.leases[node] if each.name.startswith(JOB)]
        if not found:
            return
        lease = found[which % len(found)]
        job_id = lease.name.removeprefix(JOB)
        job = replace(self.jobs[job_id], state=state, message=f"by node {node}")
        was_refused = False
        with self.at(node) as store:
            fenced = store.fenced(lease)
            try:
                if state.has_ended:
                    fenced.end_job(job)
                else:
                    fenced.save_job(job)
            except TakenOver:
                was_refused = True
        assert was_refused is not self.is_valid(lease)
        if not was_refused and state.has_ended:
            self.ends.setdefault(job_id, state)
            self.until[lease.name] = self.went_by
            self.held[node].discard(lease)

    @rule(node=nodes, which=numbers)
    def request_cancel(self, node: int, which: int) -> None:
        if self.jobs:
            with self.at(node) as store:
                store.request_cancel(list(self.jobs)[which % len(self.jobs)])

    # What happens to them.

    @rule(node=nodes)
    def kill(self, node: int) -> None:
        """Begin anew, under the same name, with nothing in memory."""
        self.held[node] = set()
        self.join(node)

    @rule(seconds=st.sampled_from([1.0, SECONDS / 2, SECONDS + 1]))
    def time_goes_by(self, seconds: float) -> None:
        self.went_by += seconds
        with self.stores[0].database.engine.begin() as connection:
            passed = {"s": seconds}
            ends = "update leases set expires_at = expires_at - :s where expires_at > 0"
            connection.execute(text(ends), passed)
            connection.execute(text("update nodes set beat_at = beat_at - :s"), passed)

    @invariant()
    def only_the_highest_fence_is_stored(self) -> None:
        with self.stores[0].database.engine.begin() as connection:
            rows = connection.execute(text("select name, fence from leases")).all()
        assert {row.name: row.fence for row in rows} == self.fences

    @invariant()
    def a_job_keeps_its_first_end(self) -> None:
        stored = {job.id: job for job in self.stores[0].jobs(limit=10_000)}
        assert stored.keys() == self.jobs.keys()
        ended = {job.id: job.state for job in stored.values() if job.state.has_ended}
        assert ended == self.ends

    def teardown(self) -> None:
        """Let every node but one be away for good: it ends what is left."""
        self.time_goes_by(SECONDS + 1)
        self.join(0)
        for _ in self.jobs:  # of two jobs of another type for one version, one goes first
            self.claim(0)
            for lease in sorted(self.held[0], key=lambda lease: lease.name):
                job_id = lease.name.removeprefix(JOB)
                if job_id in self.jobs and self.is_valid(lease) and job_id not in self.ends:
                    job = replace(self.jobs[job_id], state=JobStatus.READY)
                    self.stores[0].fenced(lease).end_job(job)
                    self.ends[job_id] = JobStatus.READY
            if self.ends.keys() == self.jobs.keys():
                break
        self.a_job_keeps_its_first_end()
        assert self.ends.keys() == self.jobs.keys()


def test_no_two_fences_are_valid_and_each_answered_job_ends_once(
    tmp_path: Path, postgres_server: Postgres
) -> None:
    database = f"machine-{secrets.token_hex(4)}"
    url = make_url(postgres_server.create(database))
    stores = [FleetStore.open(tmp_path / f"{n}", database=url, node=f"node-{n}") for n in range(3)]

    def empty() -> None:
        postgres_server.execute("truncate jobs, leases, models, nodes", database)

    class Machine(LeaseMachine):
        pass

    Machine.stores, Machine.empty = stores, staticmethod(empty)
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=100,
                stateful_step_count=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for store in stores:
            store.close()
