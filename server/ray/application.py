"""The application of Ray Serve: one deployment, one replica a machine, and its configuration.

``serve deploy`` takes the file that ``braid ray deploy --print`` writes:

    grpc_options   port of HAProxy, and the function that adds Braid's services
    applications   import_path ``braid.server.ray.application:build``, args: settings of all nodes
      deployments  Node: how many, how they scale, how long they may take to end
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve import Application

from braid.core.errors import StartupError
from braid.server.fleet_settings import without_password
from braid.server.ray.environment import DRAIN_SECONDS, RESOURCE
from braid.server.ray.handlers import ADD_TO_REPLICA
from braid.server.ray.node import NodeReplica
from braid.server.settings import Settings, load_settings

NAME, DEPLOYMENT = "braid", "Node"
BUILD = "braid.server.ray.application:build"
POLICY = "braid.server.ray.scaling:ExpectedWaiting"

RELEASE = "release"
"""Argument that means nothing to nodes: nodes are replaced when it changes."""

SHUTDOWN_SECONDS = 15.0
"""Time that a node may take to end beside its drains."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Number of nodes; equal bounds: as many at all times."""

    least: int
    most: int
    target_waiting_ms: float = 50.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise StartupError(f"nodes from {self.least} to {self.most}: give 1 or more, ascending")

    def options(self) -> dict[str, Any]:
        if self.least == self.most:
            return {"num_replicas": self.least}
        kwargs = {"target_waiting_ms": self.target_waiting_ms}
        policy = {"policy_function": POLICY, "policy_kwargs": kwargs}
        scaling = {
            "min_replicas": self.least,
            "max_replicas": self.most,
            "upscale_delay_s": 10.0,
            "downscale_delay_s": 300.0,
            "look_back_period_s": 15.0,
            "policy": policy,
        }
        return {"autoscaling_config": scaling}


def configuration(args: Mapping[str, str], nodes: Nodes) -> dict[str, Any]:
    """Return a configuration for ``serve deploy``; StartupError: a bad setting, or a secret."""
    settings = checked(args)
    grpc = {
        "port": settings.grpc_port,
        "grpc_servicer_functions": [ADD_TO_REPLICA],
        "enable_reflection": False,  # Braid has its own
    }
    ending_s = DRAIN_SECONDS + settings.drain_seconds + SHUTDOWN_SECONDS
    deployment = {
        "name": DEPLOYMENT,
        **nodes.options(),
        "max_replicas_per_node": 1,
        "graceful_shutdown_timeout_s": ending_s + settings.shutdown_delay_seconds,
        "health_check_period_s": 5.0,
        "ray_actor_options": {"num_cpus": 0, "resources": {RESOURCE: 1}},
    }
    application = {
        "name": NAME,
        "route_prefix": "/",
        "import_path": BUILD,
        "args": dict(args),
        "deployments": [deployment],
    }
    return {"proxy_location": "EveryNode", "grpc_options": grpc, "applications": [application]}


def build(args: Mapping[str, str]) -> Application:
    """Return the application; Ray Serve calls it with ``args`` of the configuration."""
    settings = {name: value for name, value in args.items() if name != RELEASE}
    checked(settings)
    options: dict[str, Any] = {"num_cpus": 0, "resources": {RESOURCE: 1}}
    deployment = serve.deployment(
        NodeReplica,
        name=DEPLOYMENT,
        max_replicas_per_node=1,
        ray_actor_options=options,
    )
    return deployment.bind(settings)


def checked(args: Mapping[str, str]) -> Settings:
    """Return the settings; Ray shows arguments to everyone who sees its dashboard."""
    given = {name: value for name, value in args.items() if name != RELEASE}
    for name, value in given.items():
        is_secret = name in ("admin_token", "infer_token") or without_password(value) != value
        if is_secret:
            raise StartupError(f"{name} has a secret, which Ray would show: put it into a file")
    if "node_name" in given or "node_address" in given:
        raise StartupError("node_name and node_address differ between nodes: leave them out")
    return load_settings(given)
