"""``braid delete``: remove a model."""

import argparse

from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.text import say


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("delete", help="remove a model; accepted requests are finished")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--version", metavar="N", help="only this version (default: all)")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        client.delete(args.name, version=args.version)
    versions = f"version {args.version}" if args.version else "all versions"
    say(f"{args.name}: {versions} deleted")
    return 0
