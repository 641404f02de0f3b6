from pathlib import Path

import pytest

from braid.core.errors import ResourceExhausted
from braid.server.inference.shared_regions import RegionLimits, SharedRegions


def test_shared_memory_is_counted_for_each_owner_and_in_all(tmp_path: Path) -> None:
    limits = RegionLimits(tmp_path, of_one_owner=2, in_all=3)
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(bytes(8))
    known = {b"1", b"2"}
    regions = SharedRegions(True, 8, known.__contains__, limits)
    regions.register(b"1", "a", "one", 0, 8)
    regions.register(b"1", "b", "one", 0, 4)
    with pytest.raises(ResourceExhausted, match="2 shared memory regions"):
        regions.register(b"1", "c", "one", 0, 8)
    regions.register(b"2", "a", "two", 0, 8)
    with pytest.raises(ResourceExhausted, match="3 with those of others"):
        regions.register(b"2", "b", "two", 0, 8)

    known.remove(b"1")

    regions.register(b"2", "b", "one", 0, 8)  # what a withdrawn token had is free again
    assert [region.key for region in regions.listed(b"2", "")] == ["two", "one"]
