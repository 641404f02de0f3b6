"""``braid serving``: show or change how a model serves: versions, labels, batching, residency."""

import argparse
from dataclasses import replace

from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.text import say
from braid.server.store.serving_config import KINDS, ON_DEMAND
from braid_client import InvalidArgument, Serving
from braid_client.serving import BATCHING


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serving",
        help="which versions serve, labels, batching, residency",
        description="Without options, shows how a model serves; with them, changes that. "
        "Requests that name no version go to the one labelled 'stable', or else the newest that "
        "answers.",
    )
    parser.add_argument("name", metavar="NAME")
    add = parser.add_argument
    add(
        "--versions",
        metavar="WHICH",
        type=versions_of,
        help="all, latest:N, or numbers such as 1,3",
    )
    add("--label", metavar="LABEL=N", action="append", default=[], help="name version N so")
    add("--unlabel", metavar="LABEL", action="append", default=[], help="take a label away")
    add("--max-wait-ms", metavar="MS", type=float, help="longest wait for more rows, if it pays")
    add("--max-queue-requests", metavar="N", type=int, help="requests that may wait")
    add("--max-queue-rows", metavar="N", type=int, help="rows that may wait")
    add("--max-queue-ms", metavar="MS", type=float, help="refuse what would wait longer; 0: never")
    add("--share", metavar="X", type=float, help="of the device's time, others having 1")
    add("--residency", choices=KINDS, help="when it is in memory: always, unless others need it...")
    add("--idle-seconds", metavar="S", type=float, help="unload a model on demand that is not used")
    add(
        "--refuse-unloaded",
        dest="refuses",
        action=argparse.BooleanOptionalAction,
        help="requests that find it unloaded are told UNAVAILABLE, and do not wait",
    )
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        before = client.serving(args.name)
        wanted = changed(before, args)
        after = before if wanted == before else client.set_serving(args.name, wanted)
    say(described(args.name, after))
    return 0


def changed(before: Serving, args: argparse.Namespace) -> Serving:
    labels = dict(before.labels)
    for text in args.label:
        label, equals, version = text.partition("=")
        if not (equals and version.isascii() and version.isdigit()):
            raise InvalidArgument(f"--label {text}: give LABEL=NUMBER, such as stable=3")
        labels[label] = int(version)
    for label in args.unlabel:
        labels.pop(label, None)
    after = replace(before, labels=labels)
    if args.versions is not None:
        latest, numbers = args.versions
        after = replace(after, latest=latest, versions=numbers)
    for name in BATCHING:
        if (value := getattr(args, name, None)) is not None:
            after = replace(after, **{name: value})
    if args.residency is not None:
        idle_s = before.idle_s if args.residency == ON_DEMAND else None
        after = replace(after, residency=args.residency, idle_s=idle_s)
    if args.idle_seconds is not None:
        after = replace(after, idle_s=args.idle_seconds)
    return after if args.refuses is None else replace(after, refuses=args.refuses)


def versions_of(text: str) -> tuple[int | None, tuple[int, ...]]:
    if text == "all":
        return None, ()
    latest = text.startswith("latest:")
    try:
        numbers = tuple(int(part) for part in text.removeprefix("latest:").split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or (latest and len(numbers) > 1):
        raise argparse.ArgumentTypeError(f"give all, latest:N or numbers, from 1 on: {text!r}")
    return (numbers[0], ()) if latest else (None, numbers)


def described(name: str, serving: Serving) -> str:
    versions = f"the latest {serving.latest}" if serving.latest else "all"
    if serving.versions:
        versions = ", ".join(map(str, serving.versions))
    lines = [f"{name}: versions {versions}"]
    lines += [f"  {label} -> version {number}" for label, number in sorted(serving.labels.items())]
    batching = {
        "waits for rows up to": serving.max_wait_ms and f"{serving.max_wait_ms:g} ms",
        "requests that may wait": serving.max_queue_requests,
        "rows that may wait": serving.max_queue_rows,
        "expected wait that is refused": serving.max_queue_ms and f"{serving.max_queue_ms:g} ms",
        "share of the device": serving.share,
    }
    lines += [f"  {what}: {value}" for what, value in batching.items() if value is not None]
    if serving != replace(serving, residency="resident", idle_s=None, refuses=False):
        idle = "" if serving.idle_s is None else f", unloaded after {serving.idle_s:g} s"
        end = "are refused" if serving.refuses else "wait"
        lines.append(f"  {serving.residency}{idle}; requests that find it unloaded {end}")
    return "\n".join(lines)
