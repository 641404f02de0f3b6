"""``braid serve``: start a server and run it until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import sys

from core.errors import StartupError
from server.cli.connection import Subparsers

FLAGS = {
    "--store": ("DIR", "where models, jobs and schedules are kept"),
    "--host": ("HOST", "address to listen on (default: 127.0.0.1, this machine only)"),
    "--grpc-port": ("PORT", "default: 8001; 0 takes any free port"),
    "--http-port": ("PORT", "metrics; default: 8002"),
    "--devices": ("LIST", "comma-separated; default: cpu"),
    "--threads": ("N", "of the CPU device; default: all cores"),
    "--preload": ("NAME=FILE,...", "register these models at start; a folder: the .onnx in it"),
    "--log-level": ("LEVEL", "DEBUG, INFO, WARNING or ERROR"),
    "--log-format": ("FORMAT", "text or json"),
}


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "serve",
        help="start a server",
        epilog="Every setting can also be given as an environment variable, BRAID_GRPC_PORT and "
        "so on; flags win.",
    )
    for flag, (metavar, text) in FLAGS.items():
        parser.add_argument(flag, metavar=metavar, help=text)


def run(args: argparse.Namespace) -> int:
    """Start the server; returns when it has drained."""
    # Imported here: no other subcommand needs what the server is made of.
    from server.frontend import run as run_server
    from server.settings import load_settings

    names = [flag.removeprefix("--").replace("-", "_") for flag in FLAGS]
    try:
        settings = load_settings({name: getattr(args, name) for name in names})
    except StartupError as error:
        print(f"braid serve: {error}", file=sys.stderr)
        return 2
    run_server(settings)
    return 0
