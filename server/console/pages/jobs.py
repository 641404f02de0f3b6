"""The pages about registration jobs: all of them, and one as it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from braid.server.console.facts import Facts
from braid.server.console.pages.html import Child, Html, h, table
from braid.server.console.pages.layout import Page, action, live, moment, pairs, state, url
from braid.server.store.records import JobRecord, JobStatus

PHASES = (
    (JobStatus.QUEUED, "queued"),
    (JobStatus.IMPORTING, "importing"),
    (JobStatus.PROFILING, "measuring stages"),
    (JobStatus.SCHEDULING, "searching"),
    (JobStatus.VERIFYING, "verifying"),
    (JobStatus.READY, "ready"),
)


async def all_jobs(facts: Facts) -> Page:
    """Return the page of the newest jobs."""
    rows = map(_row, await facts.jobs())
    columns = ("job", "model", "state", "done", "left", "changed", "detail")
    shown = table(columns, rows, right=("left",), caption="Registration jobs, newest first")
    return Page("Jobs", live("jobs", shown), "Jobs", is_live=True)


def _row(job: JobRecord) -> Sequence[Child]:
    model = url("models", job.model, version=job.version)
    return (
        h("a", job.id, href=url("jobs", job.id)),
        h("a", f"{job.model} v{job.version}", href=model),
        state(job.state.value),
        _bar(job),
        _left(job),
        moment(job.updated_unix),
        job.message or job.detail,
    )


def _bar(job: JobRecord) -> Html:
    percent = f"{job.progress:.0%}"
    label = f"progress of {job.model}"
    return h("progress", percent, value=round(job.progress, 4), max=1, aria_label=label)


def _left(job: JobRecord) -> str:
    if job.state.has_ended or job.eta_seconds < 0:
        return ""
    minutes, seconds = divmod(round(job.eta_seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


async def one_job(facts: Facts, job_id: str, *, is_admin: bool) -> Page:
    """Return the page of one job, phase by phase."""
    job = await facts.runner.find(job_id)
    counts = f"{job.done} of {job.total}" if job.total else ""
    body = h(
        "div",
        live(
            "job",
            h("ol", list(_phases(job)), class_="phases"),
            h("p", _bar(job), f" {job.progress:.0%}", class_="wide"),
            pairs(
                ("state", state(job.state.value)),
                ("now", job.detail),
                ("in this phase", counts),
                ("left", _left(job)),
                ("message", job.message),
                ("changed", moment(job.updated_unix)),
            ),
        ),
        pairs(
            ("model", h("a", job.model, href=url("models", job.model, version=job.version))),
            ("version", job.version),
            ("began", moment(job.created_unix)),
        ),
        action("Cancel", url("jobs", job.id, "cancel"), confirm="Cancel this job?", danger=True)
        if is_admin and not job.state.has_ended
        else None,
    )
    return Page(f"Registration of {job.model}", body, "Jobs", is_live=not job.state.has_ended)


def _phases(job: JobRecord) -> Iterator[Html]:
    """Yield all phases; the present one is marked, for screen readers too."""
    order = [phase for phase, _ in PHASES]
    at = order.index(job.state) if job.state in order else -1
    for index, (phase, label) in enumerate(PHASES):
        is_now = phase is job.state
        done = index < at or (is_now and job.state.has_ended)
        yield h("li", label, aria_current="step" if is_now else None,
                class_="done" if done else None)  # fmt: skip
