"""Errors of outputs against a reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def errors(got: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[float, float]:
    """Largest absolute error over all outputs, and largest relative to its output's maximum.

    A NaN or infinity must stand in the same place in both; elsewhere it counts as an infinite
    error.
    """
    max_abs = max_rel = 0.0
    for name, expected in reference.items():
        want, have = expected.double().flatten(), got[name].double().flatten()
        same = (want == have) | (want.isnan() & have.isnan())
        gap = torch.where(same, 0.0, (want - have).abs()).nan_to_num(nan=float("inf"))
        largest = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
        worst = gap.max().item() if gap.numel() else 0.0
        max_abs = max(max_abs, worst)
        max_rel = max(max_rel, worst / largest if largest else worst)
    return max_abs, max_rel
