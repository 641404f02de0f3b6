"""Kernels that a device offers for a unit, and the choice among them.

    bind (engine/program/program.py) ──> KernelSource.variants(unit) ──> choose ──> Kernel

    engine/cpu/kernels/candidates.py    oneDNN directly, oneDNN through torch, the registry's
    engine/cuda/kernels/candidates.py   cuDNN, cuBLASLt, TorchInductor, the registry's

A choice is remembered by the unit's signature: it serves every model with such a unit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.json_form import to_json
from braid.engine.onednn.library import Unsupported
from braid.engine.program.kernel import Kernel, PackedWeights

REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class MergedUnit:
    """One unit that computes what several units compute from their common input."""

    unit: Operator
    graph: OpGraph  # knows the specs of the merged unit's weight, bias and output
    tensors: Mapping[str, Tensor]  # its weight and bias, by name
    axis: int  # of its output, along which the parts lie side by side
    parts: tuple[tuple[int, ...], ...]  # shape of each unit's output


class KernelSource(Protocol):
    """All kernels that a device has for schedule units."""

    def variants(
        self, unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> Iterable[Kernel]:
        """The kernel that is usually fastest comes first; ``constants`` are placed (``place``)."""

    def signature(self, unit: Operator, graph: OpGraph) -> str:
        """Key of the unit's choice of kernel: equal where the speed of the kernels is equal."""

    def place(
        self, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> dict[str, Tensor]:
        """The graph's constants in the device's memory, each one once for all plans of a model."""

    def cut(self, kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
        """``kernel``, which runs ``merged.unit``, with its output cut into that of each unit."""


def makeable(kernels: Iterable[Kernel], threads: int) -> Iterator[Kernel]:
    for kernel in kernels:
        try:
            kernel.recipe_on(threads)
        except Unsupported:
            continue
        yield kernel


def choose(kernels: Iterable[Kernel], threads: int, wanted: str | None = None) -> Kernel:
    """The variant ``wanted``, else the first that can be made for ``threads`` threads."""
    if wanted is not None:
        kernels = sorted(kernels, key=lambda kernel: kernel.variant != wanted)
    first = next(makeable(kernels, threads), None)
    assert first is not None, "the registry runs everything"
    return first


def cut_output(kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
    """``kernel`` followed by torch's cuts of its output, on any device; see ``KernelSource.cut``.

    Rows of a part of a matrix lie apart, which matrix products and attention read as they are.
    A part of an image is copied here, where it is measured: convolutions would copy it.
    """
    run = kernel.run_on(threads)
    weight, bias = merged.tensors.values()
    extents = [part[merged.axis] for part in merged.parts]

    def cut(x: Tensor) -> tuple[Tensor, ...]:
        result = run(x, weight, bias)
        whole = result if isinstance(result, Tensor) else result[0]
        parts = torch.split(whole, extents, merged.axis)
        if merged.axis != 1:
            return parts
        last = whole.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return tuple(part.contiguous(memory_format=layout) for part in parts)

    return Kernel(f"{kernel.variant}, merged", cut)


def kernel_signature(unit: Operator, graph: OpGraph) -> str:
    """24 hex digits of a hash over all of a unit but names and content of tensors."""
    specs = [to_json(graph.spec(name)) if name else None for name in (*unit.inputs, *unit.outputs)]
    document = [
        unit.kind,
        unit.attributes_of_speed(),
        [n in graph.constants for n in unit.inputs],
        specs,
    ]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:24]
