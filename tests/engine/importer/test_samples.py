"""Files of samples: what is read, and what fits a model; hostile ones: tests/attack."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braid.core.errors import InvalidRequest
from braid.core.tensor import TensorType
from braid.engine.importer.host.samples import check_fit, digest_of, read_samples

LIMIT = 1 << 20
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
TEMPLATE = {"x": TensorType("FP32", ("batch", 4)), "ids": TensorType("INT64", ("batch", 2))}
ONE = {"x": TensorType("FP32", (1, 4)), "ids": TensorType("INT64", (1, 2))}
IDS = np.zeros((3, 2), np.int64)


def packed(path: Path, arrays: Mapping[str, Any], **options: Any) -> Path:
    np.savez(path, **arrays, **options)
    return path


def test_arrays_come_back_as_they_were_packed(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "x": ROWS,
        "turned": np.asfortranarray(ROWS),
        "ids": IDS,
        "flags": ROWS > 5,
    }
    np.savez_compressed(tmp_path / "small.npz", **arrays)

    for path in (packed(tmp_path / "a.npz", arrays), tmp_path / "small.npz"):
        found = read_samples(path, LIMIT)

        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_equal_content_has_one_digest_however_it_was_packed(tmp_path: Path) -> None:
    first = read_samples(packed(tmp_path / "a.npz", {"x": ROWS, "ids": IDS}), LIMIT)
    np.savez_compressed(tmp_path / "b.npz", ids=IDS, x=ROWS)
    other = read_samples(packed(tmp_path / "c.npz", {"x": ROWS + 1, "ids": IDS}), LIMIT)

    assert digest_of(first) == digest_of(read_samples(tmp_path / "b.npz", LIMIT))
    assert digest_of(first) != digest_of(other)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "hold no arrays"),
        ({"x": np.float32(1)}, "counts samples"),
        ({"x": ROWS, "ids": IDS[:2]}, "equally many .* 3 of 'x', 2 of 'ids'"),
        ({"x": np.zeros((0, 4), np.float32)}, "1 to 512"),
        ({"x": np.zeros((513, 1), np.float32)}, "1 to 512"),
        ({"x": np.full((1, 4), np.nan, np.float32)}, "NaN or infinity"),
        ({"x": np.zeros((1, LIMIT), np.float32)}, "BRAID_MAX_SAMPLES_BYTES"),
    ],
)
def test_what_no_error_can_be_measured_on_is_refused(
    arrays: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    path = packed(tmp_path / "bad.npz", arrays)

    with pytest.raises(InvalidRequest, match=reason):
        read_samples(path, LIMIT)


def test_a_file_that_is_no_archive_or_damaged_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.npy"
    np.save(plain, ROWS)
    whole = io.BytesIO()
    np.savez(whole, x=ROWS)
    damaged = bytearray(whole.getvalue())
    damaged[damaged.index(ROWS.tobytes()) + 3] ^= 0xFF
    (tmp_path / "damaged.npz").write_bytes(damaged)

    for path in (plain, tmp_path / "damaged.npz"):
        with pytest.raises(InvalidRequest, match=r"no \.npz file"):
            read_samples(path, LIMIT)


def test_samples_fit_the_rows_of_a_model() -> None:
    assert check_fit({"x": ROWS, "ids": IDS}, ONE, TEMPLATE) == 3
    fixed = {"x": TensorType("FP32", (2, 4))}
    assert check_fit({"x": np.zeros((5, 2, 4), np.float32)}, fixed, fixed) == 5


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ({"x": ROWS}, "give one array for each of the model's inputs: x, ids"),
        ({"x": ROWS, "ids": IDS, "y": ROWS}, "the samples are of ids, x, y"),
        ({"x": ROWS.astype(np.float64), "ids": IDS}, r"'x'\] is float64, the model takes float32"),
        ({"x": ROWS[:, :3], "ids": IDS}, r"shape \[3, 3\]; the model takes .*\[samples, 4\]"),
        ({"x": ROWS[None], "ids": IDS[None]}, r"shape \[1, 3, 4\]"),
    ],
)
def test_samples_that_do_not_fit_are_named(samples: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        check_fit(samples, ONE, TEMPLATE)


@pytest.mark.parametrize("descr", ["<U0", "|S0", "|V0", "<U4", "|S4", "<c8"])
def test_types_that_are_no_numbers_are_refused(descr: str, tmp_path: Path) -> None:
    written = io.BytesIO()
    np.lib.format.write_array(written, np.zeros((3, 1), np.int64))
    header = written.getvalue().replace(b"'<i8'", f"'{descr}'".encode().ljust(5))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", header)

    with pytest.raises(InvalidRequest, match=r"samples\['x'\] are of numpy's type .*give numbers"):
        read_samples(tmp_path / "x.npz", LIMIT)
