"""Green contexts: streams whose kernels run on some of the device's multiprocessors only.

    all multiprocessors ──one split──> n for the origin stream │ the rest for every other stream

``torch.cuda.GreenContext`` splits anew for each context it makes, so that two of them overlap; the
parts are disjoint only if they come from one split. So this goes to the CUDA driver through
``cuda.bindings`` (12.8 or later), and torch sees the streams as external ones. A kernel captured on
such a stream keeps to its part when the graph is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from braid.engine.cuda.driver.interface import ORIGIN, Partition

GRANULE = 8  # multiprocessors; what parts are multiples of on compute capability 9.0 and later
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


def refusal(partition: Partition, multiprocessors: int) -> str:
    """Why such a partition cannot be, as far as can be told without trying; empty if it can."""
    count = partition.origin_multiprocessors
    if count % GRANULE or not 0 < count < multiprocessors:
        return f"{count} of {multiprocessors} is no multiple of {GRANULE} that leaves a rest"
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "the package cuda-bindings is not installed"
    return ""


class PartitionedStreams:
    """The two green contexts of one partition, and streams on them. Lives as long as the process.

    Raises:
        RuntimeError: driver, bindings or device refuse; the message says where.
    """

    def __init__(self, device: torch.device, partition: Partition) -> None:
        from cuda.bindings import driver as cuda  # only machines with a GPU have it

        self._cuda = Cuda(cuda)
        self._device = device
        self._contexts = part(self._cuda, device.index, partition)

    def stream(self, index: int, priority: int) -> torch.cuda.Stream:
        """A new stream, on the origin's part or on the rest."""
        context = self._contexts[0 if index == ORIGIN else 1]
        raw = self._cuda("cuGreenCtxStreamCreate", context, _NON_BLOCKING, priority)
        return torch.cuda.ExternalStream(int(raw), device=self._device)


@dataclass(frozen=True, slots=True)
class Cuda:
    """The CUDA driver as ``cuda.bindings`` show it: functions that answer (error, *results)."""

    bindings: Any

    def __call__(self, name: str, *arguments: Any) -> Any:
        """StreamCall a function; its results, or its only result, without the error.

        Raises:
            RuntimeError: the installed bindings do not have it, or CUDA refuses.
        """
        function = getattr(self.bindings, name, None)
        if function is None:
            raise RuntimeError(f"the installed cuda-bindings have no {name}")
        error, *results = function(*arguments)
        if int(error) != 0:
            raise RuntimeError(f"{name} answers {error}")
        return results[0] if len(results) == 1 else results


def part(cuda: Cuda, device_index: int, partition: Partition) -> list[Any]:
    """Split a device once; the green contexts of the origin's part and of the rest."""
    device = cuda("cuDeviceGet", device_index)
    kind = cuda.bindings.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    everything = cuda("cuDeviceGetDevResource", device, kind)
    parts, made, rest = cuda(
        "cuDevSmResourceSplitByCount", 1, everything, 0, partition.origin_multiprocessors
    )
    if made != 1 or rest.sm.smCount == 0:
        raise RuntimeError("the multiprocessors could not be split in two")
    flags = cuda.bindings.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    return [
        cuda("cuGreenCtxCreate", cuda("cuDevResourceGenerateDesc", [resource], 1), device, flags)
        for resource in (parts[0], rest)
    ]
