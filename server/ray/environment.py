"""Environment of Ray's processes on every node: what Braid needs, and which of it is missing.

Ray Serve reads these variables once, when a process of it starts, so they must be there before
``ray start``. ``braid ray start`` sets them; elsewhere they come from ``braid ray environment``.
"""

from collections.abc import Mapping
from pathlib import Path

from braid.core.child_process import python_program
from braid.server.ports.grpc_port import largest_message_bytes
from braid.server.settings import Settings

WINDOW_BYTES = 4 << 20
"""HTTP/2 window of a stream through HAProxy, in bytes. The default (64 KiB) costs 40 % of tensor
throughput."""

BUFFER_BYTES = 128 << 10
"""Buffer of a call through HAProxy, in bytes, each way. HAProxy needs 0.7 ms of CPU for a tensor of
600 KB both ways, 2.0 ms with its default (16 KiB)."""

CALLS = 1024
"""Concurrent calls on a connection to HAProxy, and on one of its own; a server has as many."""

DRAIN_SECONDS = 10
"""Time in which a node that is to end still takes calls, until no HAProxy sends it any."""

HEAD_SECONDS = 600
"""Time in which the head has to be back. Ray's default, a minute, is short for a new machine."""

RESOURCE = "braid"
"""Ray resource of a machine that may be a node: one each."""

HAPROXY = "braid-haproxy"
"""Console script that Ray Serve starts in place of HAProxy."""


def needed(settings: Settings) -> dict[str, str]:
    """Variables that have to have these values on every node."""
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # Handlers and the front end belong to one event loop.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_HAPROXY_H2_FE_INITIAL_WINDOW_SIZE": str(WINDOW_BYTES),
        "RAY_SERVE_HAPROXY_H2_BE_INITIAL_WINDOW_SIZE": str(WINDOW_BYTES),
        "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(largest_message_bytes(settings)),
    }


def useful(threads: int) -> dict[str, str]:
    """Variables that an operator may set to other values; ``threads`` are HAProxy's on a node."""
    return {
        "RAY_SERVE_HAPROXY_NBTHREAD": str(threads),
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(BUFFER_BYTES),
        "RAY_SERVE_HAPROXY_H2_FE_MAX_CONCURRENT_STREAMS": str(CALLS),
        "RAY_SERVE_HAPROXY_H2_BE_MAX_CONCURRENT_STREAMS": str(CALLS),
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_SECONDS),
        # Machines wait so long for a head that is away, and serve on.
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_SECONDS),
        # Ray's default of 15 leaves HAProxy and nodes what any other process of the machine wants.
        "RAY_worker_niceness": "0",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        # A replica asks for no GPU of Ray's: it finds its devices itself.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(python_program().with_name(HAPROXY)),
    }


def missing(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return one line that says which variables are wrong; empty: none is."""
    wrong = [
        f"{name}={value}"
        for name, value in needed(settings).items()
        if environment.get(name) != value
    ]
    binary = environment.get("RAY_SERVE_HAPROXY_BINARY_PATH", "")
    if Path(binary).name != HAPROXY:
        wrong.append(f"RAY_SERVE_HAPROXY_BINARY_PATH=.../{HAPROXY}")
    if not wrong:
        return ""
    return f"not set before `ray start`: {' '.join(wrong)} (`braid ray start` sets them)"


def with_braid(settings: Settings, environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return an environment for ``ray start``, completed; what is useful and set stays."""
    return {**useful(threads), **environment, **needed(settings)}
