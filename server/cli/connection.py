"""What all subcommands that talk to a server share: its address and the client."""

from __future__ import annotations

import argparse
import os
from typing import TypeAlias

from braid_client import Client, RetryPolicy
from braid_client.rpcs import DEFAULT_ADDRESS

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def default_address() -> str:
    """Where the server is unless ``--address`` says otherwise."""
    return os.environ.get("BRAID_ADDRESS") or DEFAULT_ADDRESS


def add_address(parser: argparse.ArgumentParser, *, nested: bool = False) -> None:
    """Add ``--address``; ``nested``: the parent parser has it too, and sets the default."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default=argparse.SUPPRESS if nested else default_address(),
        help=f"of the server's gRPC port (default: BRAID_ADDRESS or {DEFAULT_ADDRESS})",
    )


def connect(args: argparse.Namespace, *, patient: bool = False) -> Client:
    """A client of the server that the command line names.

    Someone waits at a terminal, so an unreachable server is reported soon; unless ``patient``,
    for what is to outlast a restart of the server.
    """
    return Client(args.address, retry=RetryPolicy(max_attempts=12 if patient else 3))


def address_option(args: argparse.Namespace) -> str:
    """What to append to a suggested command, so that it reaches the same server."""
    return "" if args.address == default_address() else f" --address {args.address}"
