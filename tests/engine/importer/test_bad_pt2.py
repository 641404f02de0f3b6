from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from braid.core.errors import ModelImportError
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import specialise
from tests.engine.importer.running import imported, left_in
from tests.models.bad_pt2 import CHANGES, SAMPLES, Payload, attack, bomb, link, packed, saved, sound

_AT_SHAPES = ("a fill of 2^38",)  # refused once shapes are known


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound")


def read(data: bytes, folder: Path) -> None:
    """What the importer does before it runs anything, in this very process."""
    path = folder / "upload"
    path.write_bytes(data)
    template, weights, _ = open_upload(path, folder).lowered()
    template, weights = run_passes(template, weights)
    specs = {name: spec.bind({"s77": 2}) for name, spec in template.inputs.items()}
    if all(spec.is_static for spec in specs.values()):
        specialise(template, weights, specs)


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in _AT_SHAPES])
def test_a_bad_pt2_is_refused_with_its_reason_and_nothing_of_it_runs(
    name: str, tmp_path: Path, folder: Path
) -> None:
    marker = tmp_path / "marker"

    with pytest.raises(ModelImportError, match=CHANGES[name][1]):
        read(attack(name, marker, folder), tmp_path)

    assert not marker.exists()


@pytest.mark.parametrize("save", [pickle.dumps, saved], ids=["bare", "torch"])
def test_sample_inputs_of_any_class_are_never_loaded(
    save: Callable[[object], bytes], tmp_path: Path, folder: Path
) -> None:
    marker = tmp_path / "marker"

    read(packed({**sound(folder), SAMPLES: save((Payload(marker),))}), tmp_path)

    assert not marker.exists()


def test_the_file_the_attacks_are_made_of_is_sound(tmp_path: Path, folder: Path) -> None:
    read(packed(sound(folder)), tmp_path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with pytest.raises(ModelImportError, match="times its size"):
        read(bomb(), tmp_path)


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelImportError, match="is a link"):
        read(link("/etc/passwd"), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "pickled weights" else [pytest.mark.slow])
        for name in CHANGES
    ],
)
async def test_an_import_of_a_bad_pt2_fails_and_leaves_nothing(
    name: str, tmp_path: Path, folder: Path
) -> None:
    marker = tmp_path.parent / f"{tmp_path.name}-marker"

    with pytest.raises(ModelImportError, match=CHANGES[name][1]):
        await imported(attack(name, marker, folder), tmp_path)

    assert left_in(tmp_path) == []
    assert not marker.exists()
