"""The pages about registration jobs: all of them, and one as it goes on."""

from collections.abc import Iterator
from dataclasses import dataclass

from braid.compiler.progress import batch_size_label
from braid.core.errors import NotFound
from braid.core.precision import ASKED, INT8
from braid.scheduler.options import PLANNERS, PORTFOLIO
from braid.server.console.facts import Facts
from braid.server.console.registration import CHECKED_BYTES
from braid.server.console.rendering import Page
from braid.server.store.records import JobRecord, JobStatus, ModelVersion

PHASES = (
    JobStatus.QUEUED,
    JobStatus.IMPORTING,
    JobStatus.PROFILING,
    JobStatus.SCHEDULING,
    JobStatus.VERIFYING,
)


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A phase of a job, or a batch size that it schedules."""

    text: str
    is_done: bool = False
    is_now: bool = False


async def all_jobs(facts: Facts) -> Page:
    return Page("jobs.html", "Jobs", {"jobs": await facts.jobs()}, "Jobs", is_live=True)


async def one_job(facts: Facts, job_id: str) -> Page:
    job = await facts.runner.find(job_id)
    shown = {"job": job, "phases": list(_phases(job)), "batch_sizes": await _sizes(facts, job)}
    title = f"Registration of {job.model}"
    return Page("job.html", title, shown, "Jobs", is_live=not job.state.has_ended)


async def registration(facts: Facts) -> Page:
    shown = {
        "planners": PLANNERS,
        "planner": PORTFOLIO,
        "precisions": [name for name in ASKED if name != INT8],  # which needs samples
        "devices": [device.name for device in facts.devices.all],
        "head_bytes": CHECKED_BYTES,
        "register": facts.register(),
    }
    return Page("register.html", "Register a model", shown, "Models")


def _phases(job: JobRecord) -> Iterator[ShownStep]:
    """Yield all phases and the end; of a job that failed or was cancelled, none counts as done."""
    has_worked = job.state in (JobStatus.READY, JobStatus.UNSCHEDULED)
    at = PHASES.index(job.state) if job.state in PHASES else len(PHASES) if has_worked else -1
    for index, phase in enumerate(PHASES):
        yield ShownStep(phase.word, index < at, phase is job.state)
    end = job.state if job.state.has_ended else JobStatus.READY
    yield ShownStep(end.word, job.state is JobStatus.READY, job.state.has_ended)


async def _sizes(facts: Facts, job: JobRecord) -> list[ShownStep]:
    """Return the batch sizes on each device; one with a schedule is done.

    Profiling again forgets the schedules first.
    """
    try:
        model = await facts.queries.find(job.model, str(job.version))
    except NotFound:  # deleted since
        return []
    placed = await facts.queries.schedules(model)
    scheduled = {
        (row.device, facts.other_shapes(model, row), row.schedule.key.batch_size) for row in placed
    }
    names = [device.name for device in facts.devices.all]
    steps = []
    for at in ("", *facts.models.scheduled_shapes(model)[1:]):
        for device in names:
            for size in _wanted(facts, model):
                label = batch_size_label(size, device if len(names) > 1 else "", at)
                is_now = job.detail.startswith(f"{label}:") and not job.state.has_ended
                text = label.removeprefix("batch size ")
                is_done = (device, at, size) in scheduled and not is_now
                steps.append(ShownStep(text, is_done, is_now))
    return steps


def _wanted(facts: Facts, model: ModelVersion) -> tuple[int, ...]:
    """Return the batch sizes that are scheduled; a model without a batch has one only."""
    served = facts.served(model)
    sizes = model.options.batch_sizes if served is None or served.batched else ()
    return sizes or (1,)
