"""Three processes on one database in random order: leases, jobs, kills, wrong clocks.

Never are two fences of one lease valid, and every job that was answered ends exactly once.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.fleet.audit import INSTALL, TABLES
from tests.fleet.postgres import Postgres
from tests.fleet.store_process import StoreProcess

pytestmark = pytest.mark.fleet

KEYS = ("schedule:a", "schedule:b")
SKEWS = (0, 3600, -3600)
PROCESSES = st.integers(0, len(SKEWS) - 1)
ENDED = "('READY', 'UNSCHEDULED', 'FAILED', 'CANCELLED')"


class LeaseMachine(RuleBasedStateMachine):
    """What the leases of three processes may do, beside what they did."""

    postgres: ClassVar[Postgres]

    def __init__(self) -> None:
        super().__init__()
        self.database = f"leases-{secrets.token_hex(4)}"
        self.url = self.postgres.create(self.database)
        self.folder = Path(mkdtemp(prefix="braid-leases-"))
        self.starts = 0
        self.processes: list[StoreProcess] = []
        self.held: list[set[str]] = []  # names of leases that each process believes it has
        self.last: dict[str, tuple[int, int]] = {}  # process and fence that last took each lease
        self.over: set[str] = set()  # leases that have run out, or were released
        self.jobs: dict[str, bool] = {}  # that were answered: whether they have ended

    @initialize()
    def begin(self) -> None:
        for number in range(len(SKEWS)):
            self.processes.append(self._process(number))
            self.held.append(set())
        statements = [
            INSTALL,
            *(
                f"create trigger record after insert or update or delete on {table} "
                "for each row execute function record_write()"
                for table in TABLES
            ),
        ]
        for statement in statements:
            self.postgres.execute(statement, self.database)

    def _process(self, number: int) -> StoreProcess:
        self.starts += 1
        folder = self.folder / str(self.starts)
        return StoreProcess(self.url, folder, f"node-{self.starts}", SKEWS[number])

    def _took(self, number: int, name: str, fence: int) -> None:
        _, before = self.last.get(name, (number, 0))
        assert fence > before, f"fence {fence} of {name} after {before}"
        assert name not in self.last or name in self.over, f"{name} was taken from its owner"
        self.over.discard(name)
        self.last[name] = (number, fence)
        self.held[number].add(name)

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(number=PROCESSES)
    def registers(self, number: int) -> None:
        job = self.processes[number].tell("register", f"net-{len(self.jobs)}")
        self.jobs[job] = False
        self._took(number, f"job:{job}", 1)

    @rule(number=PROCESSES, name=st.sampled_from(KEYS))
    def acquires(self, number: int, name: str) -> None:
        fence = self.processes[number].tell("acquire", name)
        if fence is None:
            assert name not in self.over
            assert name in self.last
        else:
            self._took(number, name, fence)

    @precondition(lambda self: self.jobs)
    @rule(number=PROCESSES, choice=st.integers(0, 3))
    def claims(self, number: int, choice: int) -> None:
        job = [*self.jobs][choice % len(self.jobs)]
        name = f"job:{job}"
        fence = self.processes[number].tell("claim", job)
        assert (fence is not None) == (name in self.over and not self.jobs[job])
        if fence is not None:
            self._took(number, name, fence)

    @rule()
    def time_passes(self) -> None:
        """Let every lease run out; no process knows."""
        self.postgres.execute("update leases set expires_at = 0", self.database)
        self.over |= self.last.keys()

    @rule(number=PROCESSES)
    def dies(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number] = self._process(number)
        self.held[number] = set()

    @rule(number=PROCESSES, choice=st.integers(0, 9), is_end=st.booleans())
    def writes(self, number: int, choice: int, is_end: bool) -> None:
        """Write under a lease that a process believes it has; the last to take it may."""
        names = sorted(name for name in self.held[number] if not self._has_ended(name))
        if not names:
            return
        name = names[choice % len(names)]
        may = self.last[name][0] == number
        what = "end" if is_end and name.startswith("job:") else "write"
        assert self.processes[number].tell(what, name) == may, f"{what} of {name}"
        if what == "end" and may:
            self.jobs[name.removeprefix("job:")] = True
            self.over.add(name)
            self.held[number].discard(name)

    @rule(number=PROCESSES, name=st.sampled_from(KEYS))
    def releases(self, number: int, name: str) -> None:
        if name in self.held[number]:
            self.processes[number].tell("release", name)
            self.held[number].discard(name)
            if self.last[name][0] == number:
                self.over.add(name)

    def _has_ended(self, name: str) -> bool:
        return self.jobs.get(name.removeprefix("job:"), False)

    @invariant()
    def one_fence_is_valid(self) -> None:
        """The database has, of each lease, the fence that was taken last."""
        rows = (
            self.postgres.execute("select name, fence from leases", self.database)
            if self.processes
            else []
        )
        assert dict(rows) == {name: fence for name, (_, fence) in self.last.items()}

    def teardown(self) -> None:
        if not self.processes:
            return
        try:
            self.time_passes()
            for job, has_ended in self.jobs.items():
                if not has_ended:
                    self.claims(0, [*self.jobs].index(job))
                    assert self.processes[0].tell("end", f"job:{job}")
            ends = self.postgres.execute(
                "select row->>'id', count(*) from audit where name = 'jobs' "
                f"and row->>'state' in {ENDED} and was->>'state' not in {ENDED} group by 1",
                self.database,
            )
            assert dict(ends) == dict.fromkeys(self.jobs, 1)
        finally:
            for process in self.processes:
                process.kill()
            shutil.rmtree(self.folder)
            self.postgres.execute(f'drop database "{self.database}" with (force)')


@pytest.fixture
def machine(postgres_server: Postgres) -> type[LeaseMachine]:
    LeaseMachine.postgres = postgres_server
    return LeaseMachine


def test_leases_and_jobs(machine: type[LeaseMachine]) -> None:
    case = machine.TestCase
    case.settings = settings(
        max_examples=3,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
        print_blob=False,
    )
    case().runTest()
