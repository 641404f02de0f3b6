"""Bad uploads of both formats: refused with the reason, and nothing of them runs or stays."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import specialise
from campaigns.fuzz.forked import run_importer
from tests.engine.importer.running import imported, left_in
from tests.models.bad_onnx import BAD, of, unsupported
from tests.models.bad_pt2 import CHANGES, SAMPLES, Payload, attack, bomb, link, packed, saved, sound

_IN_CI = {
    *("empty", "a thousand nested Ifs", "thirty doubling functions", "Loop of 2^62"),
    *("data at an absolute path", "hidden external data", "ConstantOfShape of 2^38"),
}
"""What limits and confinement of the process may have a part in."""

_SLOW = {"Tile to 2^40", "Pad to 2^40", "Range of 2^38", "negative dims"}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    """What a real importer process is run on in which suite."""
    if name == "cycle":
        return []
    return [pytest.mark.ci if name in _IN_CI else pytest.mark.slow]


@pytest.mark.parametrize("name", [name for name in BAD if name not in _SLOW])
def test_a_bad_upload_is_refused_with_its_reason(name: str) -> None:
    build, reason = BAD[name]

    outcome = run_importer(build())

    assert outcome.kind == "refused", outcome
    assert re.search(reason, outcome.detail)


@pytest.mark.parametrize("name", [pytest.param(n, marks=_marks(n)) for n in BAD])
async def test_a_bad_upload_fails_with_its_reason_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    build, reason = BAD[name]

    with pytest.raises(ModelImportError, match=reason):
        await imported(build(), tmp_path)

    assert left_in(tmp_path) == []


@pytest.mark.ci
async def test_unsupported_operators_are_named_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperators) as caught:
        await imported(unsupported(), tmp_path)

    whole, first, second = caught.value.reasons
    assert "domain 'own'" in whole  # the main one: why ONNX Runtime does not serve it either
    assert "Frobnicate" in first
    assert "Explode" in second


def test_a_model_at_odds_with_itself_is_refused_by_the_reference() -> None:
    outcome = run_importer(of("w = Constant<value_floats=[1.0, 2.0, 3.0]>()  y = Add(x, w)"))

    assert outcome.kind == "refused", outcome
    assert "does not run" in outcome.detail


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


@pytest.mark.parametrize(
    ("data", "reason"), [(bomb(), "times its size"), (link("/etc/passwd"), "is a link")]
)
def test_a_zip_bomb_and_a_link_are_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelImportError, match=reason):
        read(data, tmp_path)


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
