from __future__ import annotations

import re
from pathlib import Path

import pytest

from braid.core.errors import ModelImportError, UnsupportedOperators
from campaigns.fuzz.forked import run_importer
from tests.engine.importer.running import imported, left_in
from tests.models.bad_onnx import BAD, of, unsupported

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
