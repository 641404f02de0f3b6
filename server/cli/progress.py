"""Progress of an upload and its job: a live bar on a terminal, plain lines elsewhere."""

from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from braid.core.measurement import size_text
from braid.server.cli.text import console, seconds_text
from braid.server.store.records import JobStatus
from braid_client import Job

WORDS = {state.value: state.word for state in JobStatus}
"""What users read of a job's state, here as in the console."""

PHASES = WORDS | {JobStatus.UNSCHEDULED.value: "serves, not scheduled"}


class JobProgress:
    """Progress of one registration, on stderr, so that stdout stays for results."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.fields[phase]}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %", markup=False),
            TextColumn("{task.fields[counts]}", markup=False),
            TextColumn("{task.fields[eta]}", markup=False),
            TextColumn("{task.fields[detail]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._phase = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it is, so that other lines can follow. May be called twice."""
        self._bar.stop()

    def upload(self, sent_bytes: int, total_bytes: int) -> None:
        """Show how many bytes of the model were sent; may be called from another thread."""
        part = sent_bytes / total_bytes if total_bytes else 1.0
        counts = f"{size_text(sent_bytes)} of {size_text(total_bytes)}"
        self._update("uploading", part, counts=counts)

    def show(self, job: Job) -> None:
        counts = f"{job.done} of {job.total}" if job.total else ""
        eta = "" if job.ended or job.eta_s is None else f"{seconds_text(job.eta_s)} left"
        phase = PHASES.get(job.state.value, job.state.lower())
        self._update(phase, job.progress, counts=counts, eta=eta, detail=job.detail)

    def _update(
        self, phase: str, part: float, *, counts: str = "", eta: str = "", detail: str = ""
    ) -> None:
        if self._bar.disable:
            if phase != self._phase:
                line = " · ".join(text for text in (phase, counts, eta, detail) if text)
                self._console.print(Text(line))
            self._phase = phase
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=1.0, phase="", counts="", eta="", detail="")
        self._bar.update(
            self._task, completed=part, phase=f"{phase:16}", counts=counts, eta=eta, detail=detail
        )
