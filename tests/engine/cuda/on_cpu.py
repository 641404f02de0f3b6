"""Calls that name a GPU, done on the CPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode


class Stream(Protocol):
    launches: int


class Graph(Protocol):
    def refuse(self) -> None:
        """End with an error."""


class Fake(Protocol):
    """What stands in for torch.cuda."""

    @property
    def current(self) -> Stream:
        """The current stream."""

    @property
    def capturing(self) -> Graph | None:
        """The capture under way."""


class OnCpu(TorchFunctionMode):
    """Tensors for the GPU are made on the CPU; those that make one count as a launch."""

    def __init__(self, fake: Fake) -> None:
        super().__init__()
        self._fake = fake

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **given)
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0].clone()
        if name == "pin_memory":
            return args[0]
        if self._fake.capturing and (name == "cpu" or func is torch.tensor):
            self._fake.capturing.refuse()
        if given.pop("pin_memory", False) and torch.device(given.get("device", "cpu")) != _CPU:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        if _is_gpu(given.get("device")):
            self._fake.current.launches += 1
            given["device"] = _CPU
        return func(*(_CPU if _is_gpu(each) else each for each in args), **given)


_CPU = torch.device("cpu")


def _is_gpu(given: object) -> bool:
    text = str(given) if isinstance(given, (str, torch.device)) else ""
    return text.partition(":")[0] == "cuda"
