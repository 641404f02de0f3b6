"""``braid register``: upload a model, and with ``--wait`` watch it until it is scheduled.

Ctrl-C while waiting ends the waiting only: the job goes on in the server.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from braid.compiler.options import several_shapes
from braid.core.precision import ASKED
from braid.scheduler.options import PLANNERS
from braid.server.cli.connection import Subparsers, add_address, connect, connection_options
from braid.server.cli.parser import INTERRUPTED, at_least_zero, counts
from braid.server.cli.progress import JobProgress
from braid.server.cli.remote.models import print_details
from braid.server.cli.text import print_json, say
from braid.server.store.serving_config import KINDS, STABLE
from braid_client import Client, Job, JobFailed, JobState, ModelState, PlannerOptions

NOT_SCHEDULED = 3
"""Exit code if a model serves, but no schedule was found for some device or batch size."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("register", help="upload a model, schedule it and serve it")
    parser.add_argument("name", metavar="NAME", help="letters, digits, '.', '_', '-'")
    parser.add_argument("file", metavar="FILE", type=Path, help="an ONNX model")
    parser.add_argument(
        "--batch-sizes",
        metavar="N,N,...",
        type=counts,
        default=(),
        help="to schedule, each by itself (default: 1, and larger ones that pay)",
    )
    _add_planner(parser)
    parser.add_argument(
        "--input-shape",
        metavar="NAME=N,N,...",
        type=input_shape,
        action="append",
        default=[],
        help="whole shape, batch as 1, of an input with other open extents; repeat for each input, "
        "and for each of several shapes to schedule",
    )
    parser.add_argument(
        "--lengths",
        metavar="N,N,...",
        type=lengths,
        default="none",
        help="of the one axis along which requests are padded, to schedule, too; default: none",
    )
    padding = parser.add_mutually_exclusive_group()
    padding.add_argument(
        "--pad",
        metavar="AXIS=WAY",
        type=padded_axis,
        action="append",
        default=[],
        help="pad requests along an axis by zeros or repeat (of the last position); fails if the "
        "import's trials disagree",
    )
    padding.add_argument("--no-pad", action="store_true", help="never pad requests")
    parser.add_argument(
        "--batchable",
        action="store_true",
        help="rows of requests may share batches though the import does not show that they do not "
        "influence each other",
    )
    _add_precision(parser)
    parser.add_argument(
        "--residency",
        choices=KINDS,
        help="pinned: always in memory; resident: unless others need it; on-demand: while it is "
        "used (default: as it was, at first resident)",
    )
    parser.add_argument(
        "--pin",
        metavar="PLAN",
        default="",
        help="planner or runtime that serves wherever a schedule has it, so that equal inputs give "
        "equal bits; braid schedule unpin lets requests decide",
    )
    parser.add_argument("--wait", action="store_true", help="until scheduled, showing progress")
    parser.add_argument("--json", action="store_true", help="the job, with --wait as it ended")
    add_address(parser)


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        metavar="P",
        choices=ASKED,
        default="",
        help="fp32 (default), tf32, fp16, bf16 or int8 (needs --samples), as far as the server's "
        "devices can; auto: the fastest of those within the accepted error",
    )
    parser.add_argument(
        "--accept-error",
        metavar="E",
        type=float,
        help="of outputs, relative to the largest element (default: usual for the precision)",
    )
    parser.add_argument(
        "--samples",
        metavar="FILE",
        type=Path,
        help=".npz of arrays by input, the first dimension counting samples, to measure errors on "
        "(default: on seeded inputs), and ranges of integers; an import tries them where the model "
        "takes nothing that it can make up",
    )


def _add_planner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--planner",
        metavar="NAME",
        default="",
        choices=PLANNERS,
        help="default: the server's choice",
    )
    parser.add_argument(
        "--max-group-ops", metavar="R", type=at_least_zero, default=0, help="operators in one group"
    )
    parser.add_argument(
        "--max-groups", metavar="S", type=at_least_zero, default=0, help="groups in a stage"
    )


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``x=1,3,224,224``. Names may hold ``=``; the last one counts."""
    name, equals, shape = text.rpartition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"not NAME=N,N,...: {text!r}")
    return name, extents(shape)


def lengths(text: str) -> str:
    if text != "none" and min(extents(text)) < 1:
        raise argparse.ArgumentTypeError(f"lengths start at 1: {text!r}")
    return text


def padded_axis(text: str) -> tuple[str, str]:
    name, equals, way = text.rpartition("=")
    if not equals or not name or way not in ("zeros", "repeat"):
        raise argparse.ArgumentTypeError(f"not AXIS=zeros or AXIS=repeat: {text!r}")
    return name, way


def extents(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not integers between commas: {text!r}") from None


def run(args: argparse.Namespace) -> int:
    with connect(args, patient=True) as client, JobProgress() as progress:
        try:
            job = client.register(
                args.name,
                args.file,
                batch_sizes=args.batch_sizes,
                planner=PlannerOptions(args.planner, args.max_group_ops, args.max_groups),
                input_shapes=several_shapes(args.input_shape),
                precision=args.precision,
                accepted_error=args.accept_error,
                samples=args.samples,
                pad=dict(args.pad),
                no_pad=args.no_pad,
                lengths=args.lengths,
                batchable=args.batchable,
                residency=args.residency,
                pin=args.pin,
                on_upload=progress.upload,
            )
        except KeyboardInterrupt:
            print("braid: the upload was stopped; nothing is registered", file=sys.stderr)
            return INTERRUPTED
        if job.already_registered:
            say(
                f"{job.model} version {job.version} is already registered: this file with these "
                "options; nothing has changed",
                stderr=args.json,
            )
        if not args.json and (traffic := _traffic(client, job, args)):
            say(traffic)
        if args.wait:
            return watch(client, job, args, progress)
    if job.already_registered and job.ended and not args.json:
        return 0
    return follow(job, args, "accepted")


def follow(job: Job, args: argparse.Namespace, what: str) -> int:
    """Print a job that goes on, and how to watch it; returns the exit code."""
    if args.json:
        print_json([job])
    else:
        command = f"braid jobs watch {job.id}{connection_options(args)}"
        say(f"{job.model} version {job.version} is {what} as job {job.id}; follow it: {command}")
    return 0


def _traffic(client: Client, job: Job, args: argparse.Namespace) -> str:
    """Say which version gets requests that name none, and how to change that; "" if one serves."""
    of_name = [model for model in client.models() if model.name == job.model]
    serving = {int(model.version) for model in of_name if model.state is ModelState.SERVING}
    new = int(job.version)
    if not serving - {new}:
        return ""
    stable = client.serving(job.model).labels.get(STABLE)
    before = stable or max(serving - {new})
    command = f"\n  braid serving {job.model}{connection_options(args)} --label {STABLE}="
    if stable or before > new:
        keeps = f"requests that name no version stay with version {before}"
        return "" if before == new else f"{keeps}; give them to version {new}:{command}{new}"
    comes = f"version {new} gets the requests that name no version as soon as it serves"
    return "" if job.already_registered else f"{comes}; take them back:{command}{before}"


def watch(client: Client, job: Job, args: argparse.Namespace, progress: JobProgress) -> int:
    """Show a job's progress until it ends; returns the exit code. JobFailed: it does not serve."""
    try:
        for state in client.watch_job(job.id):
            job = state
            progress.show(job)
    except KeyboardInterrupt:
        progress.close()
        options = connection_options(args)
        say(
            f"braid: job {job.id} goes on; watch it: braid jobs watch {job.id}{options},\n"
            f"cancel it: braid jobs cancel {job.id}{options}",
            stderr=True,
        )
        return INTERRUPTED
    progress.close()
    if not job.serves:
        raise JobFailed(job)
    status = 0 if job.state is JobState.READY else NOT_SCHEDULED
    model = client.model(job.model, version=job.version)
    if getattr(args, "json", False):
        document = {**asdict(job), "guessed_extents": dict(model.guessed_extents)}
        print(json.dumps([document], indent=2))
        return status
    remark = f": {job.message}" if job.message else ""
    how = "is ready" if job.state is JobState.READY else "serves, but is not scheduled"
    say(f"{job.model} version {job.version} {how}{remark}")
    print_details(model)
    return status
