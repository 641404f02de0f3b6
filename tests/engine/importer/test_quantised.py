"""Models that multiply 8-bit integers: right answers also where the CPU saturates their sums."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch

from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.verification import reference
from braid.engine.ops.session_run import new_session
from braid.engine.ops.whole import KIND
from braid.engine.passes.specialise import interpret
from tests.engine.importer.running import import_here
from tests.engine.quantised.models import quantised
from tests.engine.quantised.test_networks import example, units_of

NAMES = ["separable", "attention"]


@pytest.mark.parametrize("saturates", [None, True], ids=["this CPU", "one that saturates"])
@pytest.mark.parametrize("name", NAMES)
def test_they_are_imported_in_parts(
    name: str, saturates: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if saturates:
        monkeypatch.setattr(reference, "has_integer_instructions", lambda: False)
    file = quantised(name, tmp_path, signed=False, per_channel=False, operators=True)

    found = load_artefact(import_here(file, tmp_path / "artefact"))

    assert all(op.kind != KIND for op in found.graph.operators), found.report.warnings
    assert found.report.verified.reference.startswith("onnxruntime")


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_sessions_compute_what_the_operators_say(
    name: str, operators: bool, signed: bool, tmp_path: Path
) -> None:
    file = quantised(name, tmp_path, signed=signed, per_channel=False, operators=operators)
    graph, constants = units_of(file, on_integers=False)
    x = example(graph)
    (wanted,) = interpret(graph, constants, {"x": x}).values()

    (got,) = new_session(file, onnxruntime.SessionOptions()).run(None, {"x": x.numpy()})

    scale = float(wanted.abs().max())
    torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=0, atol=0.04 * scale)
