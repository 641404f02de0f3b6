"""``make fleet-demo``: three nodes, PostgreSQL, S3 and HAProxy on this machine, seen from outside.

    one upload ──> every node answers ──> a node is killed ──> it is back ──> a rolling update

The nodes are namespaces with a network card each (tests/fleet). What happened is ten lines; all
that was started is ended, also after Ctrl-C.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from benchmarks.fleet.outages import answers
from benchmarks.fleet.stand import PLANNER, Stand, eventually
from campaigns.traffic import Question, Traffic, questions
from tests.child_processes import kill_children_at_exit
from tests.deploy.haproxy import Addresses, haproxy
from tests.fleet import alone, fleet
from tests.fleet.fleet import Fleet
from tests.fleet.machine import HTTP_PORT, Machine
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

DELAY_SECONDS = 2
"""Seconds that a node which stops serves on: longer than HAProxy takes to notice."""

CLIENTS = 4
JOB_SECONDS, READY_SECONDS = 900.0, 120.0


class Demo:
    """What is shown, step by step, on nodes behind one address."""

    def __init__(self, stand: Stand, nodes: Fleet, door: str) -> None:
        """``door`` is HOST:PORT of HAProxy."""
        self._stand, self._nodes, self._door = stand, nodes, door
        self.failed = 0  # calls that ended otherwise than they may

    def run(self) -> Iterator[str]:
        machines = self._nodes.machines
        yield f"{len(machines)} nodes, PostgreSQL and S3 are up; HAProxy is at {self._door}"
        name, asked, line = self._upload()
        yield line
        yield self._answers(asked)
        yield self._measured(name)
        yield f"the bucket has {len(self._nodes.s3.objects())} objects: uploads and artefacts"
        yield from self._killed(machines[1], name, asked)
        yield from self._rolled(name, asked)
        calls = "nothing failed that may not" if not self.failed else f"{self.failed} calls failed"
        yield f"done: {calls}; all that was started ends now"

    def _upload(self) -> tuple[str, list[Question], str]:
        name, file = self._stand.model(branches=2)
        began = time.monotonic()
        with self._nodes.machines[0].client() as client:
            job = client.register(
                name, file, planner=PLANNER, batch_sizes=[1, 4], wait=True, timeout_s=JOB_SECONDS
            )
        took_s = time.monotonic() - began
        text = f"{name} was uploaded once, to node-1, and is {job.state} after {took_s:.1f} s"
        return name, questions(name, file), text

    def _answers(self, asked: list[Question]) -> str:
        same = 0
        for machine in self._nodes.machines:
            with machine.client() as client:
                is_right, _ = eventually(partial(answers, client, asked[0]), 60)
                same += is_right
        return f"{same} of {len(self._nodes.machines)} nodes answer it, as ONNX Runtime does"

    def _measured(self, name: str) -> str:
        def unended() -> int:
            ended = "('READY', 'UNSCHEDULED', 'FAILED', 'CANCELLED')"
            return int(self._nodes.value(f"select count(*) from jobs where state not in {ended}"))

        eventually(lambda: not unended(), JOB_SECONDS)
        schedules = self._nodes.value("select count(*) from schedules")
        types = {tuple(machine.arguments) for machine in self._nodes.machines}
        return (
            f"{schedules} schedules: one for each batch size and device type ({len(types)} types)"
        )

    def _killed(self, machine: Machine, name: str, asked: list[Question]) -> Iterator[str]:
        load = self._load(asked)
        time.sleep(2)
        machine.power_off()
        time.sleep(4)
        tally = load.stop()
        self.failed += len(tally.surprises) + max(0, tally.outcomes["UNAVAILABLE"] - CLIENTS)
        yield (
            f"{machine.name} was killed under load: {tally.outcomes['OK']} answers, "
            f"{tally.outcomes['UNAVAILABLE']} UNAVAILABLE (at most {CLIENTS} were under way), "
            f"no gap over {tally.longest_gap_s:.2f} s"
        )
        before, began = self._schedules(), time.monotonic()
        machine.start(wait=False)
        machine.await_ready()
        with machine.client() as client:
            eventually(lambda: answers(client, asked[0]), 60)
        measured = self._schedules() - before
        yield (
            f"{machine.name} is back and answers {name} after {time.monotonic() - began:.1f} s; "
            f"it measured {measured} schedules"
        )

    def _rolled(self, name: str, asked: list[Question]) -> Iterator[str]:
        """Stop and start one node after the other while clients ask."""
        before, began = self._schedules(), time.monotonic()
        load = self._load(asked)
        for machine in self._nodes.machines:
            machine.stop()
            machine.start(wait=False)
            machine.await_ready()
            time.sleep(2)  # HAProxy has seen it
        tally = load.stop()
        errors = sum(tally.outcomes.values()) - tally.outcomes["OK"]
        self.failed += errors
        yield (
            f"rolling update of {len(self._nodes.machines)} nodes in "
            f"{time.monotonic() - began:.0f} s: {tally.outcomes['OK']} answers, {errors} errors, "
            f"{self._schedules() - before} schedules measured"
        )
        served = {
            machine.name: int(machine.metric("braid_requests_total", model=name, outcome="OK"))
            for machine in self._nodes.machines
        }
        counts = ", ".join(f"{node} {count}" for node, count in served.items())
        yield f"answers since each node's start: {counts}"

    def _load(self, asked: list[Question]) -> Traffic:
        return Traffic(self._door, CLIENTS, asked, seed=1, pause_s=0.01)

    def _schedules(self) -> int:
        return int(self._nodes.value("select count(*) from schedules"))


@contextmanager
def door(folder: Path, nodes: Fleet) -> Iterator[str]:
    """HAProxy before the nodes, as it is shipped; yields HOST:PORT once it passes calls on."""
    folder.mkdir()
    addresses = [Addresses(node.address, f"{node.host}:{HTTP_PORT}") for node in nodes.machines]

    def is_ready() -> bool:
        with suppress(OSError), urlopen(f"http://{running.http_address}/readyz", timeout=2):
            return True
        return False

    with haproxy(folder, addresses) as running:
        eventually(is_ready, READY_SECONDS)
        yield running.address


def run(folder: Path, postgres: Postgres, s3: S3) -> Iterator[str]:
    """Run the demo on a PostgreSQL and an S3 that are up; yields its lines.

    Raises:
        SystemExit: calls failed that may not.
    """
    stand = Stand(folder, postgres, s3)
    environment = {"BRAID_SHUTDOWN_DELAY_SECONDS": str(DELAY_SECONDS)}
    with stand.fleet(environment=environment) as nodes, door(folder / "door", nodes) as address:
        demo = Demo(stand, nodes, address)
        yield from demo.run()
    if demo.failed:
        raise SystemExit(1)


def main() -> None:
    if alone.missing():
        if "--is-alone" in sys.argv:
            sys.exit(alone.missing())
        alone.run([sys.executable, "-m", "benchmarks.fleet.demo", "--is-alone"])
    if why := fleet.missing():
        sys.exit(why)
    kill_children_at_exit()
    with tempfile.TemporaryDirectory(prefix="braid-fleet-demo-") as name:
        folder = Path(name)
        postgres = Postgres(folder / "postgres", [alone.HUB]).start()
        s3 = S3(folder / "s3", alone.HUB, 1024).start()
        try:
            for number, line in enumerate(run(folder, postgres, s3), start=1):
                print(f"{number:2} {line}", flush=True)
        finally:
            s3.remove()
            postgres.remove()


if __name__ == "__main__":
    main()
