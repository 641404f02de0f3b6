"""Indices count from the end as in ONNX; those beyond the extent are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from braid.core.errors import InvalidRequest
from tests.engine.pt2.programs import imported, run, save

TABLE = torch.arange(30.0).reshape(10, 3)


class Looked(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.table = nn.Parameter(TABLE)

    def forward(self, indices: Tensor) -> Tensor:
        return self.function(self.table, indices)


@pytest.mark.parametrize(
    ("function", "shape", "good", "bad"),
    [
        (lambda w, i: nn.functional.embedding(i, w), (2,), [0, 9], [10, -11]),
        (lambda w, i: w.index_select(1, i), (2,), [0, 2], [3, -4]),
        (lambda w, i: w.gather(0, i), (2, 3), [0, 9], [10, -11]),
        (lambda w, i: w[i], (2,), [-10, 9], [10, -11]),
        (lambda w, i: w[:, i], (2,), [-3, 2], [3, -4]),
    ],
    ids=["embedding", "index_select", "gather", "index", "index of columns"],
)
def test_indices_at_the_ends_and_beyond(
    function: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, ...],
    good: list[int],
    bad: list[int],
    tmp_path: Path,
) -> None:
    example = torch.zeros(shape, dtype=torch.int64)
    program = imported(save(Looked(function), [example], tmp_path / "m.pt2", open_batch=False))

    for value in good:
        indices = torch.full(shape, value)
        (found,) = run(*program, [indices]).values()
        assert torch.equal(found, function(TABLE, indices))
    for value in bad:
        indices = torch.full(shape, value)
        with pytest.raises((IndexError, RuntimeError)):
            function(TABLE, indices)
        with pytest.raises(InvalidRequest, match=f"cannot use the index {value};"):
            run(*program, [indices])
