"""Hostile samples are refused by the front end, which runs nothing of them and keeps its memory."""

import tracemalloc
from pathlib import Path

import pytest

from braid.core.errors import InvalidRequest
from braid.engine.importer.host.samples import read_samples
from tests.attack.sample_files import SAMPLES, damaged

LIMIT = 1 << 20


@pytest.mark.parametrize("name", SAMPLES)
def test_hostile_samples_are_refused(name: str, tmp_path: Path) -> None:
    make, words = SAMPLES[name]
    path, marker = tmp_path / "samples.npz", tmp_path / "marker"
    path.write_bytes(make(marker))

    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=words):
            read_samples(path, LIMIT)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 8 * LIMIT
    assert not marker.exists()


def test_damaged_samples_are_refused_or_read(tmp_path: Path) -> None:
    path, refused = tmp_path / "samples.npz", 0
    for seed in range(1500):
        path.write_bytes(damaged(seed))
        try:
            read_samples(path, LIMIT)
        except InvalidRequest:
            refused += 1

    assert refused > 1000
