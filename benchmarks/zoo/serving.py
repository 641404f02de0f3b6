"""What a client sees of Braid and of thirty lines around each runtime, one row a request."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers.hosting.contract import Contender, find_contenders
from benchmarks.peers.hosting.servers import Hosting
from benchmarks.peers.load.client import client_process
from benchmarks.peers.load.tensors import write_questions
from benchmarks.peers.models import Model
from benchmarks.peers.records import OFF, Case, Load
from benchmarks.peers.results import BRAID, cells_of
from benchmarks.peers.rounds import Course, run_course, started
from benchmarks.peers.stands import Stand
from benchmarks.shapes.models import Oracle
from benchmarks.zoo.feeds import feeds_of
from benchmarks.zoo.files import ROWS, Exported, Specimen

CONTENDERS = (BRAID, "thirty_lines_ort", "thirty_lines_openvino")
_QUESTIONS = 4


@dataclass(slots=True)
class Served:
    """One network, one client after the other answer: medians over the rounds."""

    p50_ms: dict[str, float] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  # requests that failed or were wrong
    failed: dict[str, str] = field(default_factory=dict)  # contender -> why it took no part

    @property
    def speed(self) -> float:
        """How many times as fast as the better of the others Braid answers; NaN: not known."""
        others = [ms for name, ms in self.p50_ms.items() if name != BRAID]
        return min(others, default=float("nan")) / self.p50_ms.get(BRAID, float("nan"))


@dataclass(frozen=True, slots=True)
class Servers:
    """How servers are put up and loaded."""

    contenders: Sequence[Contender]
    store: Path  # of the library's schedules, with which Braid's server starts
    planner: str
    threads: int
    rounds: int
    seconds: float
    state: str = ""


def contenders(names: Sequence[str], servers: Path) -> list[Contender]:
    """Return the contenders of these names.

    Raises:
        ValueError: there is none of a name.
    """
    return find_contenders(names, servers)


def measure(specimen: Specimen, files: Exported, servers: Servers) -> Served:
    """Put all servers up with a network and load them in turns."""
    with tempfile.TemporaryDirectory(prefix="braid-zoo-") as temporary:
        folder = Path(temporary)
        oracle = Oracle(files.onnx)
        rows = feeds_of(files.onnx, min(_QUESTIONS, files.rows or ROWS))
        count = len(next(iter(rows.values())))
        questions = [
            oracle.question({name: given[n : n + 1] for name, given in rows.items()})
            for n in range(count)
        ]
        asked = write_questions(folder / "questions.npz", questions)
        model = Model(specimen.key, files.onnx, asked)
        hosting = Hosting(files.onnx, specimen.key, servers.threads, (1,))
        stands = [
            Stand(_prepared(contender, specimen, servers, folder), model, hosting, folder)
            for contender in servers.contenders
        ]
        case = Case(specimen.key, OFF, {}, servers.threads)
        case.rows = {stand.contender.name: stand.row for stand in stands}
        course = Course(servers.rounds, (1,), (), 0.3, servers.seconds, servers.state)
        with client_process() as clients, started(stands):
            run_course(course, stands, clients, case)
    served = Served(failed={name: row.failed for name, row in case.rows.items() if row.failed})
    for name, cell in cells_of(case, Load(clients=1)).items():
        served.p50_ms[name], served.errors[name] = cell.p50_us / 1e3, cell.errors
    return served


def _prepared(
    contender: Contender, specimen: Specimen, servers: Servers, folder: Path
) -> Contender:
    """Give Braid's server a store with the schedules and measurements that the library made."""
    if contender.name != BRAID:
        return contender
    store = folder / "stores" / specimen.key
    for part in ("schedules", "measurements"):
        if (servers.store / part).exists():
            shutil.copytree(servers.store / part, store / part)
    options = (f"--stores={store.parent}", f"--register=--planner={servers.planner}")
    return replace(contender, arguments=(*contender.arguments, *options))
