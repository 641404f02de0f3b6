"""``braid nodes``: list the servers that share the database."""

import argparse

from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.text import print_json, print_table, seconds_text
from braid_client import Node

COLUMNS = ("id", "state", "address", "devices", "version", "last beat", "jobs")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "nodes",
        help="list the servers of a fleet",
        description="Lists the servers that share a database, and the jobs that each works on; a "
        "server on its own lists itself. The one that answered has a star.",
    )
    parser.add_argument("--json", action="store_true", help="everything, as a JSON list")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        nodes = client.nodes()
    if args.json:
        print_json(nodes)
    else:
        print_table(COLUMNS, map(_row, nodes), right=("last beat",))
    return 0


def _row(node: Node) -> tuple[str, ...]:
    return (
        f"{node.id} *" if node.answers else node.id,
        "alive" if node.alive else "lost",
        node.address,
        ", ".join(node.device_keys),
        node.version,
        seconds_text(node.beat_age_s),
        ", ".join(node.job_ids) or "-",
    )
