import asyncio
from collections import Counter
from collections.abc import Callable

from braid.server.store.records import JobRecord, JobStatus
from tests.server.jobs.fakes import Server


async def until_ended(server: Server, job_id: str) -> list[JobRecord]:
    async with asyncio.timeout(120):
        return [job async for job in server.runner.watch(job_id)]


async def registered(server: Server, *args: object, **options: object) -> JobRecord:
    made = await server.register(*args, **options)  # type: ignore[arg-type]
    return (await until_ended(server, made.job.id))[-1]


async def reach(server: Server, job_id: str, state: JobStatus) -> None:
    async with asyncio.timeout(120):
        async for job in server.runner.watch(job_id):
            if job.state is state:
                return
    raise AssertionError(f"the job ended without being {state}")


def notes_while_waiting(server: Server) -> list[str]:
    """What the newest job says each time that it waits before it tries again."""
    said: list[str] = []

    async def note() -> None:
        (job, *_) = await server.runner.list()
        said.append(job.detail)

    server.sleeping = note
    return said


def times_measured(*servers: Server) -> set[int]:
    stages = Counter(stage for server in servers for stage in server.device.measured.elements())
    return set(stages.values())


def holds_importing(server: Server) -> None:
    server.importer.gate = asyncio.Event()


def holds_profiling(server: Server) -> None:
    """Stop at the fourth stage."""
    gate, left = asyncio.Event(), iter(range(3))

    def close(_: object) -> None:
        if next(left, None) is None:
            server.device.gate = gate

    server.device.before_measuring = close


async def stand() -> None:
    await asyncio.Event().wait()


def holds_scheduling(server: Server) -> None:
    server.planner.before_planning = stand


def holds_verifying(server: Server) -> None:
    server.device.before_comparing = stand


HOLDS: dict[JobStatus, Callable[[Server], None]] = {
    JobStatus.IMPORTING: holds_importing,
    JobStatus.PROFILING: holds_profiling,
    JobStatus.SCHEDULING: holds_scheduling,
    JobStatus.VERIFYING: holds_verifying,
}
