"""Write the corpus: ``python -m campaigns.fuzz.make_corpus``. Small files of many kinds, seeded."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import onnx
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from campaigns.fuzz.campaign import CORPUS
from campaigns.fuzz.graphs import models
from tests.engine.importer.test_external_data import WEIGHT, with_data
from tests.engine.importer.test_whole import SERVED
from tests.engine.pt2.programs import Several, save
from tests.engine.pt2.test_operators import GROUPS, Recurrent, drawn
from tests.models.graphs import from_x, own_function

_GRAPHS = 24


def main() -> None:
    """Write all files."""
    CORPUS.mkdir(exist_ok=True)
    for number in range(_GRAPHS):
        (CORPUS / f"drawn{number:02}.onnx").write_bytes(_drawn(number).SerializeToString())
    for name, build in SERVED.items():
        (CORPUS / f"{name.replace(' ', '_')}.onnx").write_bytes(build().SerializeToString())
    (CORPUS / "functions.onnx").write_bytes(_functions())
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("net.onnx", with_data(offset=16, length=16))
        archive.writestr("w.bin", WEIGHT.tobytes())
    (CORPUS / "external.zip").write_bytes(target.getvalue())
    for group, (functions, shapes) in GROUPS.items():
        some = dict(list(functions.items())[::9])
        _save(Several(some), shapes, CORPUS / f"{group}.pt2")
    torch.manual_seed(1)
    _save(Recurrent(), ((6, 8),), CORPUS / "recurrent.pt2")


def _save(module: torch.nn.Module, shapes: tuple[tuple[int, ...], ...], path: Path) -> None:
    save(module, drawn(shapes, 4), path)


def _drawn(number: int) -> onnx.ModelProto:
    """The largest of some drawings."""
    drawings: list[onnx.ModelProto] = []

    @seed(number)
    @settings(
        max_examples=8,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(models())
    def keep(drawing: onnx.ModelProto) -> None:
        drawings.append(drawing)

    keep()
    return max(drawings, key=lambda drawing: len(drawing.graph.node))


def _functions() -> bytes:
    inner = own_function("f (a) => (b)", "t = Relu(a)  b = Add(t, a)")
    made = from_x("m = own.f(x)  y = Mul(m, w)", functions=inner, w=np.ones(4, np.float32))
    return bytes(made.SerializeToString())


if __name__ == "__main__":
    main()
