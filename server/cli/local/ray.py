"""``braid ray``: nodes of Braid on a Ray cluster."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from braid.core.errors import StartupError
from braid.server.cli.connection import Subparsers
from braid.server.cli.parser import at_least_one, seconds

if TYPE_CHECKING:
    from braid.server.ray.application import Nodes

MISSING = "`braid ray` needs Ray: pip install 'braid-serve[ray]'"

FLAGS = {
    "--database": ("URL", "postgresql+psycopg://..., that all nodes share"),
    "--database-password-file": ("FILE", "on each node: the password in its first line"),
    "--files": ("URL", "s3://BUCKET/PREFIX, that all nodes share"),
    "--grpc-port": ("PORT", "of HAProxy on each node (default: 8001)"),
}
"""Settings of all nodes; the others come from BRAID_* where ``braid ray start`` ran."""

EPILOG = """on each machine, with BRAID_ADMIN_TOKEN_FILE and so on in the environment:
  braid ray start -- --head                   # on the first one
  braid ray start -- --address HEAD:6379      # on the others
then, on one of them:
  braid ray deploy --database postgresql+psycopg://braid@db/braid --files s3://braid/files
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "ray",
        help="run nodes on a Ray cluster",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="start | deploy | environment", required=True
    )
    start = actions.add_parser("start", help="`ray start` with what Braid needs in its environment")
    start.add_argument("ray", nargs="*", metavar="-- OPTIONS", help="of `ray start`")
    actions.add_parser("environment", help="print the variables that `braid ray start` sets")
    deploy = actions.add_parser("deploy", help="deploy nodes, or replace them one after the other")
    for flag, (metavar, text) in FLAGS.items():
        deploy.add_argument(flag, metavar=metavar, help=text)
    _add_numbers(deploy)
    deploy.add_argument(
        "--ray", metavar="HOST:PORT", default="auto", help="default: this machine's"
    )
    deploy.add_argument("--roll", action="store_true", help="replace all nodes, changed or not")
    deploy.add_argument("--print", action="store_true", help="print the Serve file, deploy nothing")
    deploy.add_argument(
        "--wait", metavar="SECONDS", type=seconds, default=600.0, help="in which all nodes must run"
    )


def _add_numbers(deploy: argparse.ArgumentParser) -> None:
    deploy.add_argument(
        "--nodes", metavar="N", type=at_least_one, help="default: every machine, away or not"
    )
    deploy.add_argument("--min-nodes", metavar="N", type=at_least_one, help="scale from so many")
    deploy.add_argument("--max-nodes", metavar="N", type=at_least_one, help="to so many")
    deploy.add_argument(
        "--target-waiting-ms", metavar="MS", type=float, default=50.0, help="that scaling aims at"
    )


def run(args: argparse.Namespace) -> int:
    # What needs Ray, or what the server is made of, is imported by the action that uses it.
    if find_spec("ray") is None:
        print(f"braid ray: {MISSING}", file=sys.stderr)
        return 1
    actions = {"start": _start, "environment": _print_environment, "deploy": _deploy}
    try:
        return actions[args.action](args)
    except StartupError as error:
        for line in str(error).splitlines():
            print(f"braid ray: {line}", file=sys.stderr)
        return 2


def _start(args: argparse.Namespace) -> NoReturn:
    from braid.server.ray.deploying import start
    from braid.server.settings import load_settings

    start(load_settings(), args.ray)


def _print_environment(_: argparse.Namespace) -> int:
    from braid.server.ray.environment import with_braid
    from braid.server.settings import load_settings

    for name, value in with_braid(load_settings(), {}, threads=2).items():
        print(f"{name}={value}")
    return 0


def _deploy(args: argparse.Namespace) -> int:
    import yaml

    from braid.server.ray.application import checked
    from braid.server.ray.deploying import Cluster

    if args.print and args.nodes is None and args.max_nodes is None:
        raise StartupError("--print needs --nodes, or --min-nodes and --max-nodes")
    if args.print:
        print(yaml.safe_dump(_configuration(args, 0), sort_keys=False), end="")
        return 0
    cluster = Cluster(args.ray)
    try:
        configuration = _configuration(args, _as_many_nodes(cluster.machines(), cluster.wanted()))
        [application] = configuration["applications"]
        cluster.check(checked(application["args"]))
        cluster.deploy(configuration)
        cluster.wait(args.wait, lambda line: print(line, flush=True))
    finally:
        cluster.close()
    return 0


def _as_many_nodes(machines: int, wanted: int) -> int:
    """Return how many nodes to deploy where that is not said: a machine that is away comes back."""
    if wanted > machines:
        print(f"machines are there: {machines}, nodes stay as many as wanted before: {wanted}")
    return max(machines, wanted)


def _configuration(args: argparse.Namespace, machines: int) -> dict[str, Any]:
    from braid.server.ray.application import RELEASE, configuration
    from braid_client.version import __version__

    names = {flag: flag.removeprefix("--").replace("-", "_") for flag in FLAGS}
    given = {name: getattr(args, name) for name in names.values()}
    settings = {name: value for name, value in given.items() if value is not None}
    release = f"{__version__} {time.time():.0f}" if args.roll else __version__
    return configuration({**settings, RELEASE: release}, _nodes(args, machines))


def _nodes(args: argparse.Namespace, machines: int) -> Nodes:
    from braid.server.ray.application import Nodes

    if args.min_nodes is None and args.max_nodes is None:
        count = args.nodes or machines
        return Nodes(count, count)
    return Nodes(args.min_nodes or 1, args.max_nodes or machines, args.target_waiting_ms)
