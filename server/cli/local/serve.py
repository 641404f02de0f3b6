"""``braid serve``: start a server and run it until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from braid.core.errors import InvalidRequest, StartupError
from braid.engine.processes.fork_server import ForkServer
from braid.server.cli.connection import Subparsers
from braid.server.store.records import check_model_name

if TYPE_CHECKING:
    from braid.server.settings import Settings

FLAGS = {
    "--store": ("DIR", "where models, jobs and schedules are kept"),
    "--database": ("URL", "postgresql+psycopg://..., shared by several servers; default: SQLite"),
    "--files": ("URL", "s3://BUCKET/PREFIX, shared by several servers; default: the store"),
    "--host": ("HOST", "address to listen on (default: 127.0.0.1, this machine only)"),
    "--grpc-port": ("PORT", "default: 8001; 0 takes any free port"),
    "--http-port": ("PORT", "metrics; default: 8002"),
    "--admin-address": ("HOST:PORT", "answer admin calls here instead; or unix:/PATH"),
    "--tls-certificate": ("FILE", "PEM; serve with TLS"),
    "--tls-key": ("FILE", "PEM; its key"),
    "--tls-client-ca": ("FILE", "PEM; callers must show a certificate signed by it"),
    "--admin-token-file": ("FILE", "tokens that may do everything, one a line"),
    "--infer-token-file": ("FILE", "tokens that may run models, one a line"),
    "--allow-unauthenticated": ("", "let callers without a token run models, from anywhere"),
    "--devices": ("LIST", "comma-separated: cpu, cpu:0-7 (cores), cuda:0, ...; default: cpu"),
    "--threads": ("N", "of a CPU device; default: its cores"),
    "--preload": ("NAME=FILE,...", "register these models at start; a folder: the .onnx in it"),
    "--model-repository": ("DIR", "serve the models of this folder, in Triton's layout"),
    "--ready-models": ("NAME,...", "ready only while all of these models answer"),
    "--log-level": ("LEVEL", "default: INFO"),
    "--log-format": ("FORMAT", "default: text"),
}
CHOICES = {
    "--log-level": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "--log-format": ("text", "json"),
}
CASES = {"--log-level": str.upper, "--log-format": str.lower}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="start a server",
        usage="braid serve [OPTIONS] [NAME=FILE ...]",
        epilog="Every setting can also be given as an environment variable, BRAID_GRPC_PORT and "
        "so on; flags win.",
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="NAME=FILE",
        type=model_to_serve,
        help="register this model at start, unless these bytes are registered by that name",
    )
    for flag, (metavar, text) in FLAGS.items():
        if flag in CHOICES:
            parser.add_argument(flag, type=CASES[flag], choices=CHOICES[flag], help=text)
        elif metavar:
            parser.add_argument(flag, metavar=metavar, help=text)
        else:
            parser.add_argument(flag, action="store_const", const=True, help=text)


def model_to_serve(text: str) -> str:
    """Parse ``NAME=FILE``; a file alone is a model by the name of the file."""
    name, equals, path = text.partition("=")
    if not equals:
        name, path = Path(text).stem, text
    try:
        check_model_name(name)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    if not path:
        raise argparse.ArgumentTypeError(f"not NAME=FILE: {text!r}")
    return f"{name}={path}"


def run(args: argparse.Namespace, run_server: Callable[[Settings], None] | None = None) -> int:
    """Run a server until it has drained; ``run_server`` replaces the product's composition."""
    ForkServer.running()  # loads its libraries while this process loads its own
    from braid.server.settings import load_settings

    names = [flag.removeprefix("--").replace("-", "_") for flag in FLAGS]
    try:
        settings = load_settings({name: getattr(args, name) for name in names})
        if args.models:
            settings = settings.model_copy(update={"preload": (*settings.preload, *args.models)})
    except StartupError as error:
        print(f"braid serve: {error}", file=sys.stderr)
        return 2
    gc.disable()  # collections are a seventh of the CPU time that loading takes
    from braid.server.app import process  # most of it

    gc.enable()
    (run_server or process.run)(settings)
    return 0
