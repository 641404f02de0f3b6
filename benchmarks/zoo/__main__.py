"""A zoo of networks nobody wrote for Braid: who imports them, and how fast they run.

    python -m benchmarks.zoo --transformers FOLDER --json benchmarks/results/zoo.json
    python -m benchmarks.zoo bert detectors --rows 1,2,8 --phases engines --resume --json FILE
    python -m benchmarks.zoo --types fp16,bf16 encoder lstm detector
    python -m benchmarks.zoo --brief
    python -m benchmarks.zoo --quick

    import    the file of each exporter: in parts, whole by a runtime, or refused    ──> why
    engines   what Braid serves, its sequential plan, ONNX Runtime, OpenVINO         ──> ms, errors,
              in turns, a process each                                                  plan
    bound     the least time that the plan's own units could take together           ──> share
    served    a client of Braid and of thirty lines around each runtime              ──> p50

Names are networks or families; without any, all. Files and Braid's schedules are kept in
``--folder``, so that a later run starts where this one ended; ``--resume`` leaves out what the file
of ``--json`` has. The exit status is 1 if an answer of Braid is wrong, and with ``--quick`` if
anything is worse than ``counts.json`` says.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from benchmarks import environment
from benchmarks.peers.hosting.contract import SERVERS
from benchmarks.peers.hosting.environments import SetupFailed, python_of
from benchmarks.reports import LOCAL, fill, names, numbers, parser_of, refuse_unknown
from benchmarks.states import add_state, by_state
from benchmarks.zoo import bounds, engines, serving
from benchmarks.zoo.counts import STORED, read_counts, worse, write_counts
from benchmarks.zoo.feeds import FP32, TYPES
from benchmarks.zoo.files import (
    ZOO,
    Exported,
    NotExported,
    Specimen,
    export_missing,
    exported,
)
from benchmarks.zoo.importing import imported
from benchmarks.zoo.records import Record, read_records, write_records
from benchmarks.zoo.report import text
from braid.core.allowance import cpu_allowance

IMPORT, ENGINES, BOUND, SERVED = PHASES = ("import", "engines", "bound", "served")
QUICK = (
    *("bert", "gpt2", "swin", "wav2vec2"),  # of transformers, left out where that is missing
    *("detector", "crnn", "lstm_tagger", "experts", "unet", "face_tasks"),
)
_USUAL = {"rows": [1, 2, 8], "rounds": 7, "turn": 0.2, "planner": "portfolio", "seconds": 1.0}
_QUICK = {"rows": [1], "rounds": 3, "turn": 0.05, "planner": "portfolio", "seconds": 0.2}


def measure(specimen: Specimen, record: Record, options: argparse.Namespace) -> None:
    """Take one network through the phases that are asked for and not done."""
    try:
        files = exported(specimen, options.folder / "files", options.transformers)
    except NotExported as error:
        record.not_exported = str(error)
        return
    record.exported, record.not_exported = files.how, ""
    record.failures = dict(files.failures)
    for phase, work in _PHASES.items():
        if phase in options.phases:
            try:
                work(specimen, files, record, options)
            except Exception as error:  # of a server, a contender or a device: the others go on
                record.failed[phase] = f"{type(error).__name__}: {error}"[:500]
            else:
                record.failed.pop(phase, None)


def _import(
    specimen: Specimen, files: Exported, record: Record, options: argparse.Namespace
) -> None:
    kept = options.folder / "artefacts" / specimen.key
    if "onnx" not in record.imports or not kept.exists():
        record.imports["onnx"] = imported(files.onnx, kept)
    if files.pt2 is not None and "pt2" not in record.imports and "pt2" in options.forms:
        with tempfile.TemporaryDirectory(prefix="braid-zoo-") as folder:
            record.imports["pt2"] = imported(files.pt2, Path(folder) / "artefact")


def _engines(
    specimen: Specimen, files: Exported, record: Record, options: argparse.Namespace
) -> None:
    artefact = options.folder / "artefacts" / specimen.key
    for rows in options.rows:
        if str(rows) not in record.timed and files.rows in (0, rows):
            where = files.onnx, artefact, rows
            record.timed[str(rows)] = engines.measure(
                specimen, *where, options.course, options.processes
            )


def _bound(
    specimen: Specimen, files: Exported, record: Record, options: argparse.Namespace
) -> None:
    timed = record.of_rows(1)
    if record.least_ms is None and timed is not None and timed.plan.get("planner"):
        store, threads = options.course.store, options.threads
        record.least_ms = asyncio.run(bounds.least_ms(files.onnx, timed.plan, store, threads))


def _served(
    specimen: Specimen, files: Exported, record: Record, options: argparse.Namespace
) -> None:
    if record.served is None and files.rows in (0, 1):
        record.served = serving.measure(specimen, files, options.servers_course)


_PHASES: dict[str, Callable[[Specimen, Exported, Record, argparse.Namespace], None]] = {
    IMPORT: _import,
    ENGINES: _engines,
    BOUND: _bound,
    SERVED: _served,
}


def _chosen(options: argparse.Namespace) -> list[Specimen]:
    given = options.networks or (QUICK if options.quick else list(ZOO))
    chosen = [name for name in ZOO if name in given or ZOO[name].family in given]
    return [Specimen(name, type) for type in options.types for name in chosen]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("benchmarks.zoo", __doc__)
    families = list(dict.fromkeys(entry.family for entry in ZOO.values()))
    parser.add_argument("networks", nargs="*", metavar="NAME", help="a network or a family")
    parser.add_argument("--list", action="store_true", help="print networks by family, and end")
    parser.add_argument("--phases", type=names, help=f"{','.join(PHASES)}; default: all but bound")
    parser.add_argument("--types", type=names, default=[FP32], help=",".join(TYPES))
    parser.add_argument("--rows", type=numbers, help="batch sizes: 1,2,8")
    parser.add_argument("--rounds", type=int, help="of turns: 7")
    parser.add_argument("--turn", type=float, help="seconds of runs in one turn: 0.2")
    parser.add_argument("--seconds", type=float, help="of a turn of the client: 1")
    parser.add_argument("--planner", help="of Braid: portfolio")
    parser.add_argument(
        "--brief", action="store_true", help="search nothing: the sequential plan of an import"
    )
    parser.add_argument("--forms", type=names, default=["onnx", "pt2"], help="to import")
    parser.add_argument("--threads", type=int, default=cpu_allowance().threads)
    parser.add_argument("--contenders", type=names, default=list(serving.CONTENDERS))
    parser.add_argument("--servers", type=Path, default=SERVERS, help="folder of the peers")
    parser.add_argument("--transformers", type=Path, help="folder with that package, if needed")
    parser.add_argument("--folder", type=Path, default=LOCAL / "zoo", help="files and schedules")
    parser.add_argument("--resume", action="store_true", help="leave out what --json has")
    parser.add_argument("--quick", action="store_true", help="ten networks against stored counts")
    parser.add_argument("--counts", type=Path, default=STORED, help="those of --quick")
    parser.add_argument("--write-counts", action="store_true", help="store what was counted")
    parser.add_argument("--json", type=Path, help="write all figures here (JSON)")
    add_state(parser)
    options = parser.parse_args(arguments)
    fill(options, _QUICK if options.quick else _USUAL)
    options.folder = options.folder.resolve()  # servers run in folders of their own
    is_short = options.quick or options.brief
    options.phases = options.phases or [IMPORT, ENGINES, *([] if is_short else [SERVED])]
    for kind, given, known in (
        ("phase", options.phases, PHASES),
        ("type", options.types, TYPES),
        ("network or family", options.networks, [*ZOO, *families]),
    ):
        refuse_unknown(parser, kind, given, known)
    try:
        options.contenders = serving.contenders(options.contenders, options.servers)
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if an answer was wrong, or a quick run is worse than stored."""
    signal.signal(signal.SIGTERM, _end)
    options = _options(arguments)
    if options.list:
        for family in dict.fromkeys(entry.family for entry in ZOO.values()):
            print(f"{family}: {', '.join(name for name in ZOO if ZOO[name].family == family)}")
        return 0
    return by_state(options, _run)


def _run(options: argparse.Namespace) -> int:
    facts = environment.describe("torch", "onnx", "onnxruntime", "openvino", "transformers")
    records = read_records(options.json) if options.resume else {}
    store = options.folder / "store"
    names = engines.BRIEFLY if options.brief else engines.CONTENDERS
    options.course = engines.Course(
        *(names, store, options.planner, options.threads, options.rounds, options.turn),
        state=options.state,
    )
    options.servers_course = serving.Servers(
        *(options.contenders, store, options.planner, options.threads, options.rounds),
        seconds=options.seconds,
        state=options.state,
    )
    if SERVED in options.phases:
        try:
            for contender in options.contenders:
                python_of(contender)
        except SetupFailed as error:
            print(error, file=sys.stderr)
            return 1
    seen, chosen = [], _chosen(options)
    export_missing(chosen, options.folder / "files", options.transformers)
    with engines.contenders() as options.processes:
        for specimen in chosen:
            record = records.setdefault(
                specimen.key, Record(specimen.name, specimen.family, specimen.type)
            )
            measure(specimen, record, options)
            seen.append(record)
            print(_progress(record), file=sys.stderr, flush=True)
            write_records(options.json, facts, records)
    print(text(seen, options.rows))
    faults = [f"{record.key}: answers err by {record.wrong}" for record in seen if record.wrong]
    faults += [f"{record.key}: {record.failed}" for record in seen if record.failed]
    if options.write_counts:
        write_counts(options.counts, seen)
    elif options.quick:
        faults += worse(seen, read_counts(options.counts))
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


def _progress(record: Record) -> str:
    if record.not_exported:
        return f"{record.key}: not exported, {record.not_exported}"
    imports = ", ".join(f"{form} {outcome[:60]}" for form, outcome in record.imports.items())
    timed = "; ".join(
        f"batch {rows} " + " ".join(f"{name} {ms:.2f}" for name, ms in one.ms.items())
        for rows, one in record.timed.items()
    )
    failed = f"; failed: {record.failed}" if record.failed else ""
    return f"{record.key} by {record.exported}: {imports or 'not imported'}; {timed}{failed}"


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
