"""Address, credentials and client of the server, for all subcommands that call one."""

import argparse
import os
import shlex
import socket
import ssl
from pathlib import Path
from typing import TypeAlias

from braid.server.cli.parser import Parser, host_and_port
from braid_client import Client, InvalidArgument, RetryPolicy, Tls
from braid_client.rpcs import DEFAULT_ADDRESS

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"


OPTIONS = {
    "address": (
        "HOST:PORT",
        f"of the server's gRPC port (default: BRAID_ADDRESS or {DEFAULT_ADDRESS})",
    ),
    # No flag takes the token itself: others could read it in the list of processes.
    "token_file": (
        "FILE",
        "with the token to show (default: BRAID_TOKEN_FILE, or the token in BRAID_TOKEN)",
    ),
    "tls_ca": (
        "FILE",
        "use TLS, and trust this authority; 'system': those of the system (default: BRAID_TLS_CA)",
    ),
    "tls_cert": ("FILE", "certificate to show (BRAID_TLS_CERT)"),
    "tls_key": ("FILE", "its key (BRAID_TLS_KEY)"),
}
"""Options of all subcommands that call a server: by name, what it takes and its help text."""


def _usual(name: str) -> str | None:
    given = os.environ.get(f"BRAID_{name.upper()}")
    return given or DEFAULT_ADDRESS if name == "address" else given


def add_address(parser: argparse.ArgumentParser, *, nested: bool = False) -> None:
    """Add ``--address``, token and TLS; ``nested``: the parent parser has them, with defaults."""
    for name, (metavar, text) in OPTIONS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=metavar,
            default=argparse.SUPPRESS if nested else _usual(name),
            help=text,
            type=host_and_port if name == "address" else str,
        )


def tls_of(args: argparse.Namespace) -> Tls | None:
    if args.tls_ca is None and args.tls_cert is None:
        return None
    authority = None if args.tls_ca in (None, "system") else args.tls_ca
    try:
        return Tls(authority, args.tls_cert, args.tls_key)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def token_of(args: argparse.Namespace) -> str | None:
    if args.token_file:
        return _first_token(Path(args.token_file))
    return os.environ.get("BRAID_TOKEN") or None


def connect(args: argparse.Namespace, *, patient: bool = False) -> Client:
    """Open a client of the server that the command line names.

    An unreachable server is reported soon, as a user waits at a terminal; with ``patient``, calls
    go on through a restart of the server.
    """
    return Client(
        args.address,
        retry=RetryPolicy(max_attempts=12 if patient else 3),
        token=token_of(args),
        tls=tls_of(args),
    )


def _first_token(file: Path) -> str:
    """Return the first token of a file with comments; InvalidArgument: it holds hashes only."""
    lines = [line.split("#", 1)[0].strip() for line in file.read_text().splitlines()]
    given = [line for line in lines if line]
    plain = [line for line in given if not line.startswith("sha256:")]
    if given and not plain:
        raise InvalidArgument(
            f"{file} holds hashes, from which no token can be read; name a file with the token "
            "itself, as `braid token` printed it"
        )
    return plain[0] if plain else ""


def connection_options(args: argparse.Namespace) -> str:
    """Options to append to a suggested command, so that it reaches the same server."""
    given = {name: getattr(args, name) for name in OPTIONS}
    return "".join(
        f" --{name.replace('_', '-')} {shlex.quote(value)}"
        for name, value in given.items()
        if value and value != _usual(name)
    )


def tls_hint(args: argparse.Namespace) -> str:
    """Say that an address which does not answer speaks TLS and the command does not; "": no."""
    if tls_of(args) is not None or args.address.startswith("unix:"):
        return ""
    host, _, port = args.address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host.strip("[]"), int(port)), HINT_SECONDS) as plain:
            plain.settimeout(HINT_SECONDS)
            context.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except (OSError, ValueError):
        return ""
    return f"{args.address} speaks TLS: name its authority with --tls-ca FILE, or --tls-ca system"


HINT_SECONDS = 2.0
