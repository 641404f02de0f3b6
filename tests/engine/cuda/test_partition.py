"""Parting the device, on bindings that only record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from braid.engine.cuda.driver.interface import Partition
from braid.engine.cuda.graphs.partition import Cuda, part, refusal


class Bindings:
    """132 multiprocessors, given in eights."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)

    def __init__(self, error: int = 0) -> None:
        self.error = error

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[int, range]:
        return 0, range(132)

    def cuDevSmResourceSplitByCount(
        self, groups: int, resource: range, flags: int, count: int
    ) -> tuple[int, list[Any], int, Any]:
        first, rest = resource[:count], resource[count:]
        return self.error, [first], groups, SimpleNamespace(sm=SimpleNamespace(smCount=len(rest)))

    def cuDevResourceGenerateDesc(self, resources: list[Any], count: int) -> tuple[int, Any]:
        return 0, resources

    def cuGreenCtxCreate(self, description: Any, device: int, flags: int) -> tuple[int, Any]:
        return 0, description[0]


def test_both_parts_come_from_one_split() -> None:
    first, rest = part(Cuda(Bindings()), 0, Partition(64))

    assert len(first) == 64
    assert rest.sm.smCount == 132 - 64


def test_a_device_that_refuses_is_named_with_the_call() -> None:
    with pytest.raises(RuntimeError, match="cuDevSmResourceSplitByCount answers 801"):
        part(Cuda(Bindings(error=801)), 0, Partition(64))


def test_old_bindings_are_named() -> None:
    with pytest.raises(RuntimeError, match="have no cuDeviceGet"):
        part(Cuda(object()), 0, Partition(64))


@pytest.mark.parametrize("count", [0, 12, 132, 136])
def test_impossible_parts_are_refused_without_a_try(count: int) -> None:
    assert refusal(Partition(count), 132)
