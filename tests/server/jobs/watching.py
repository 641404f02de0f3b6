import asyncio

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
