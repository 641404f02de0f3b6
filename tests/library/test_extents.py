from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import braid
from braid.core.errors import InvalidRequest
from tests.library.conftest import import_ahead
from tests.models.extents import CASES, REFUSED, Case


def compiled(case: Case, folder: Path) -> tuple[braid.Network, onnxruntime.InferenceSession]:
    path = folder / "model.onnx"
    path.write_bytes(case.build().SerializeToString())
    store = folder / "store"
    net = braid.compile(import_ahead(path, store), planner="sequential", store=store)
    return net, onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("name", CASES)
def test_calls_get_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    net, session = compiled(case, tmp_path)
    with net:
        for feed in (*case.feeds(), *case.feeds(1)):
            (wanted,) = session.run(None, dict(feed))
            np.testing.assert_allclose(net(feed), wanted, rtol=1e-4, atol=1e-5)


def test_calls_that_onnxruntime_refuses_are_refused_in_its_words(tmp_path: Path) -> None:
    net, _ = compiled(REFUSED, tmp_path)
    rows, columns = REFUSED.feeds()
    with net:
        with pytest.raises(InvalidRequest, match="Got invalid dimensions for input: mask"):
            net(rows)
        with pytest.raises(InvalidRequest, match=r"Add: Attempting to broadcast .* 5 by 6"):
            net(columns)
