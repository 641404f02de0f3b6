"""``braid ray``: starts Ray on a machine, deploys nodes to a cluster, waits until they run."""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import ray
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from braid.core.allowance import cpu_allowance
from braid.core.child_process import python_program
from braid.core.errors import StartupError
from braid.server.ray.application import NAME
from braid.server.ray.environment import RESOURCE, missing, with_braid
from braid.server.settings import Settings
from braid_client.version import __version__

CHECK_SECONDS = 60.0
LOOK_SECONDS = 0.5
DONE, FAILED = "RUNNING", "DEPLOY_FAILED"

_RAY = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"


def start(settings: Settings, arguments: Sequence[str]) -> NoReturn:
    """Become ``ray start`` with these arguments, on a machine that may be a node."""
    environment = with_braid(settings, os.environ, cpu_allowance().threads)
    resources = ["--resources", json.dumps({RESOURCE: 1})]
    has_resources = any(argument.startswith("--resources") for argument in arguments)
    command = ["start", *([] if has_resources else resources), *arguments]
    python = str(python_program())
    os.execve(python, [python, "-c", _RAY, *command], environment)


@dataclass(frozen=True, slots=True)
class Machine:
    """Findings of a task on a machine of the cluster."""

    address: str
    version: str  # of Braid
    environment: Mapping[str, str]


class Cluster:
    """Connection to a Ray cluster, from one of its machines."""

    def __init__(self, address: str) -> None:
        """``address``: of the head; ``auto``: this machine's Ray. StartupError: no Ray answers."""
        try:
            self._context = ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            raise StartupError(
                f"no Ray answers at {address}: run `braid ray start` on each machine, and this "
                "command on one of them"
            ) from None

    def close(self) -> None:
        ray.shutdown()

    def machines(self) -> int:
        """Return how many machines may be nodes. Raises StartupError: none may."""
        machines: int = round(ray.cluster_resources().get(RESOURCE, 0))
        if not machines:
            raise StartupError(f"no machine of the cluster has the resource {RESOURCE!r}")
        return machines

    def wanted(self) -> int:
        """Nodes that the last deployment is to have; 0: there is none. Raises StartupError."""
        try:
            return _wanted(self._serve.get_serve_details()["applications"])
        except (RuntimeError, ConnectionError):
            raise StartupError(f"Ray's dashboard does not answer at {self._dashboard}") from None

    def check(self, settings: Settings) -> None:
        """Look at Ray's environment on every machine; StartupError says what is wrong on each."""
        look = ray.remote(num_cpus=0, max_retries=0)(_look)
        tasks = {}
        for node in ray.nodes():
            if node["Alive"]:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                address = node["NodeManagerAddress"]
                tasks[address] = look.options(scheduling_strategy=there).remote(address)
        wrong = []
        for address, task in tasks.items():
            try:
                machine: Machine = ray.get(task, timeout=CHECK_SECONDS)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
                wrong.append(f"{address}: Braid cannot be used there ({reason})")
                continue
            if machine.version != __version__:
                wrong.append(f"{address}: Braid is {machine.version} there, {__version__} here")
            if line := missing(settings, machine.environment):
                wrong.append(f"{address}: {line}")
        if wrong:
            raise StartupError("\n".join(wrong))

    def deploy(self, configuration: Mapping[str, Any]) -> None:
        """Hand a configuration to Ray Serve, as ``serve deploy`` does, or raise StartupError."""
        try:
            self._serve.deploy_applications(dict(configuration))
        except RuntimeError as error:  # with a traceback of the dashboard's
            *_, last = str(error).strip(". \n").splitlines()
            raise StartupError(f"Ray Serve does not take the configuration: {last}") from None

    def wait(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until all nodes run; ``tell`` gets lines of what changed. StartupError: why not."""
        until, last = time.monotonic() + seconds, ""
        while True:
            status, line = self._status()
            if line != last:
                tell(line)
            last = line
            if status == DONE:
                return
            if status == FAILED or time.monotonic() > until:
                raise StartupError(line)
            time.sleep(LOOK_SECONDS)

    def _status(self) -> tuple[str, str]:
        try:
            applications = self._serve.get_serve_details()["applications"]
        except (RuntimeError, ConnectionError) as error:
            return "unknown", f"Ray's dashboard does not answer ({type(error).__name__})"
        application = applications.get(
            NAME, {"status": "NOT_STARTED", "message": "", "deployments": {}}
        )
        status = str(application["status"])
        counts: dict[str, int] = {}
        messages = [str(application["message"])]
        for deployment in application["deployments"].values():
            messages.append(str(deployment["message"]))
            for replica in deployment["replicas"]:
                counts[replica["state"]] = counts.get(replica["state"], 0) + 1
        shown = ", ".join(f"{count} {state.lower()}" for state, count in sorted(counts.items()))
        reason = "" if status == DONE else _reason(" ".join(messages))
        return status, ": ".join(filter(None, (f"{status.lower()} ({shown or 'no node'})", reason)))

    @property
    def _serve(self) -> ServeSubmissionClient:
        return ServeSubmissionClient(self._dashboard)

    @property
    def _dashboard(self) -> str:
        return f"http://{self._context.address_info['webui_url']}"


def _wanted(applications: Mapping[str, Any]) -> int:
    deployments = applications.get(NAME, {}).get("deployments", {})
    return sum(deployment["target_num_replicas"] for deployment in deployments.values())


def _look(address: str) -> Machine:
    return Machine(address, __version__, dict(os.environ))


def _reason(messages: str) -> str:
    """Return the line that says why a node did not start, out of Ray's traceback; or nothing."""
    lines = (line.strip() for line in messages.splitlines())
    named = [line for line in lines if "Error: " in line]
    return named[-1].partition("Error: ")[2] if named else ""
