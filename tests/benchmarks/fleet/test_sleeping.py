"""Real servers whose devices sleep: they answer their input, no sooner than a batch takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fleet.sleeping.cases import Fleet
from benchmarks.fleet.sleeping.door import logging_door
from benchmarks.fleet.sleeping.nodes import MODEL, WIDTH, sleeping_nodes
from braid_client import Client
from tests.clock import until
from tests.deploy.haproxy import Addresses
from tests.deploy.places import program

pytestmark = pytest.mark.ci

TABLES: list[dict[int, float]] = [{1: 30_000.0, 2: 40_000.0}, {1: 300_000.0, 2: 400_000.0}]
ROWS = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


def test_the_door_sends_to_both_nodes_which_take_as_long_as_they_are_told(tmp_path: Path) -> None:
    program("haproxy", "haproxy")
    weights = Fleet((1.0, 10.0), is_weighted=True).weights
    with sleeping_nodes(tmp_path, TABLES) as nodes:
        addresses = [Addresses(node.address, node.http_address) for node in nodes]
        with logging_door(tmp_path / "door", addresses, weights) as door:
            compute_us = set[int]()
            with Client(door.address) as client:

                def look() -> bool:
                    result = client.infer(MODEL, {"x": ROWS}, timeout_s=30)
                    np.testing.assert_array_equal(result.outputs["y"], ROWS)
                    compute_us.add(result.timing.compute_us)
                    return len({us >= 400_000 for us in compute_us}) == 2

                until(look)
            passed = until(door.passed)

    assert weights == [10, 1]
    assert min(compute_us) >= 40_000
    assert {each.node for each in passed} <= {1, 2}
    assert all(each.whole_ms >= TABLES[each.node - 1][2] / 1e3 for each in passed)
