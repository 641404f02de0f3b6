"""What an entry of the zoo is: a module, its inputs, and its family."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Draw = Callable[[int], Tensor]
"""Makes an input of so many rows, from torch's global generator."""

_SETTLING_ROWS, _SETTLING_RUNS = 8, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """How a network is built, and what its inputs are, in the order of ``forward``."""

    family: str
    build: Callable[[], nn.Module]
    draws: tuple[Draw, ...]

    def module(self) -> nn.Module:
        """Return the network with weights of seed 0 and settled batch norms, in evaluation mode."""
        torch.manual_seed(0)
        module = self.build().eval().requires_grad_(False)
        _settle(module, self)
        return module

    def inputs(self, module: nn.Module, rows: int) -> dict[str, Tensor]:
        """Return inputs by the names that ``forward`` has for them; equal for equal ``rows``."""
        torch.manual_seed(1)
        names = list(inspect.signature(module.forward).parameters)[: len(self.draws)]
        return {name: draw(rows) for name, draw in zip(names, self.draws, strict=True)}


def _settle(module: nn.Module, entry: Entry) -> None:
    """Give batch norms the statistics of what they see, so that no depth makes numbers explode."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    if not norms:
        return
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all runs
        norm.train()
    with torch.no_grad():
        for _ in range(_SETTLING_RUNS):
            module(**entry.inputs(module, _SETTLING_ROWS))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
        norm.eval()


def floats(*shape: int) -> Draw:
    return lambda rows: torch.randn(rows, *shape)


def ids(*shape: int, vocabulary: int = 1000, first: int = 0) -> Draw:
    return lambda rows: torch.randint(first, vocabulary, (rows, *shape))


def mask(length: int) -> Draw:
    """Make masks of tokens: row 0 has all of them, the rest end earlier."""

    def draw(rows: int) -> Tensor:
        lengths = torch.randint(length // 2, length + 1, (rows, 1))
        lengths[0] = length
        return (torch.arange(length) < lengths).to(torch.int64)

    return draw
