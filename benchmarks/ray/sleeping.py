"""Application of Ray Serve whose nodes have devices that sleep (benchmarks/fleet/sleeping)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.serve import Application

from benchmarks.fleet.sleeping import LATENCIES
from benchmarks.fleet.sleeping.server import sleeping_host
from braid.server.ray.application import Nodes, application_with, configuration

BUILD = "benchmarks.ray.sleeping:build"


def build(args: Mapping[str, str]) -> Application:
    return application_with(sleeping_host, args)


def write_configuration(file: Path, nodes: Nodes, **scaling: float) -> Path:
    """Write a file for ``braid ray deploy --config``; ``scaling`` are options of the autoscaler."""
    document: dict[str, Any] = configuration({}, nodes)
    [application] = document["applications"]
    application["import_path"] = BUILD
    if scaling:
        application["deployments"][0]["autoscaling_config"] |= scaling
    file.write_text(json.dumps(document))
    return file


def write_latencies(store: Path, batch_us: Mapping[int, float]) -> None:
    """Say how long batches take on the device of a node with this store."""
    store.mkdir(parents=True, exist_ok=True)
    (store / LATENCIES).write_text(json.dumps(batch_us))
