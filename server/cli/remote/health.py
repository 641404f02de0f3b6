"""``braid health``: ask a server for its health, in container checks and scripts."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from braid.server.cli.connection import Subparsers, add_address, connect, tls_hint, tls_of, token_of
from braid.server.cli.parser import seconds
from braid.server.servicers.health import DEVICES, LIVENESS, READY
from braid_client import BraidError
from braid_client.proxies import of_proxy
from braid_client.rpcs import channel_options

PAUSE_S = 0.1

_SERVING = health_pb2.HealthCheckResponse.SERVING


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("health", help="exit code 0 if a server, or a model, is ready")
    parser.add_argument(
        "--service",
        metavar="NAME",
        default="",
        help="liveness, or a model's name (default: whether the server takes requests)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=3.0, help="to be ready (default: 3)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="status, devices, and CPUs and memory that may be used (null without a token)",
    )
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    """Print the status; the exit code is 0 if the server is healthy in time."""
    tls, options = tls_of(args), channel_options(args.address)
    needs_token = args.json or args.service not in (READY, LIVENESS)  # devices, names of models
    token = token_of(args) if needs_token else None
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with (
        grpc.insecure_channel(args.address, options)
        if tls is None
        else grpc.secure_channel(args.address, tls.credentials(), options)
    ) as channel:
        stub, end = health_pb2_grpc.HealthStub(channel), time.monotonic() + args.timeout
        request = health_pb2.HealthCheckRequest(service=args.service)
        try:
            while True:
                answer, call = stub.Check.with_call(
                    request, timeout=args.timeout, metadata=metadata
                )
                if answer.status == _SERVING or time.monotonic() > end:
                    break
                time.sleep(PAUSE_S)
        except grpc.RpcError as error:
            reason = error.code().name.lower().replace("_", " ") + of_proxy(args.address)
            hint = tls_hint(args) if error.code() is grpc.StatusCode.UNAVAILABLE else ""
            print(f"braid health: {hint or f'{args.address}: {reason}'}", file=sys.stderr)
            return 1
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    status = name.lower().replace("_", " ")
    if args.json:
        devices = dict(call.trailing_metadata() or ()).get(DEVICES, "[]")
        facts = {"status": status, "devices": json.loads(devices), **_of_node(args)}
        status = json.dumps(facts, indent=2)
    print(status)
    return 0 if answer.status == _SERVING else 1


def _of_node(args: argparse.Namespace) -> dict[str, Any]:
    """Keys of the devices of the server that answers, and what it may use; null if not told."""
    try:
        with connect(args) as client:
            node = next(node for node in client.nodes(timeout_s=args.timeout) if node.answers)
    except (BraidError, StopIteration):
        return {"device_keys": None, "allowance": None}
    allowance = None if node.allowance is None else asdict(node.allowance)
    return {"device_keys": list(node.device_keys), "allowance": allowance}
