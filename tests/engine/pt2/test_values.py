"""Indices count from the end as in ONNX; those beyond the extent are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from braid.core.errors import InvalidRequest
from tests.engine.pt2.programs import imported, run, save

TABLE = torch.arange(30.0).reshape(10, 3)
LOOKED_UP: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], int]] = {
    "embedding": (lambda w, i: nn.functional.embedding(i, w), (2,), 10),
    "index_select": (lambda w, i: w.index_select(1, i), (2,), 3),
    "gather": (lambda w, i: w.gather(0, i), (2, 3), 10),
    "index": (lambda w, i: w[i], (2,), 10),
    "index_of_columns": (lambda w, i: w[:, i], (2,), 3),
}
"""By name: what looks something up, the shape of its indices, and the extent of their axis."""
FROM_THE_END = ("index", "index_of_columns")
"""Those that torch itself lets count from the end."""


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(TABLE)

    def forward(self, *indices: Tensor) -> dict[str, Tensor]:
        functions = [function for function, _, _ in LOOKED_UP.values()]
        looked = (f(self.table, i) for f, i in zip(functions, indices, strict=True))
        return dict(zip(LOOKED_UP, looked, strict=True))


def test_indices_at_the_ends_and_beyond(tmp_path: Path) -> None:
    zeros = [torch.zeros(shape, dtype=torch.int64) for _, shape, _ in LOOKED_UP.values()]
    program = imported(save(Looked(), zeros, tmp_path / "m.pt2", open_batch=False))

    for at, (name, (function, shape, extent)) in enumerate(LOOKED_UP.items()):

        def given(value: int, at: int = at) -> list[Tensor]:
            return [*zeros[:at], torch.full_like(zeros[at], value), *zeros[at + 1 :]]

        for value in (-extent if name in FROM_THE_END else 0, extent - 1):
            found = run(*program, given(value))[name]
            assert torch.equal(found, function(TABLE, torch.full(shape, value)))
        for value in (extent, -extent - 1):
            with pytest.raises((IndexError, RuntimeError)):
                function(TABLE, torch.full(shape, value))
            with pytest.raises(InvalidRequest, match=f"cannot use the index {value};"):
                run(*program, given(value))
