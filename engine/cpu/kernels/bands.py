"""A chain of units in bands of rows as one kernel: each thread runs one band's primitives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph
from braid.engine.cpu.kernels.onednn_units import bind_directly
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.cpu.memory import Lifetime, plan_memory
from braid.engine.onednn.library import OneDnn, Unsupported
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.program.bands import RESULT, BandUnit, bands_of, chain_input, operand
from braid.engine.program.kernel import Kernel, PackedWeights

_ITEM_BYTES = 4


def bind_bands(
    units: Sequence[int],
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    packed: PackedWeights,
    library: OneDnn,
) -> Kernel:
    """Kernel of a chain, from its only input to the result of its last unit.

    Raises:
        InvalidArtefact: these units cannot run in bands.
    """
    chain_input(graph, units)
    result = graph.operators[units[-1]].outputs[0]
    shape = tuple(int(extent) for extent in graph.spec(result).shape)

    def make(threads: int) -> Recipe:
        actions: list[Action] = []
        lanes: list[int] = []
        temporaries: list[Buffer] = []
        for number, band in enumerate(bands_of(graph, units, threads)):
            kernels = [_bound(unit, constants, packed, library) for unit in band]
            own, size_bytes = _actions(graph, band, kernels, number, result)
            actions += own
            lanes.append(len(own))
            temporaries.append(Buffer((max(1, size_bytes // _ITEM_BYTES),), images=False))
        whole = Buffer(shape, images=True)
        return Recipe(tuple(actions), ((0, True),), (whole,), tuple(temporaries), tuple(lanes))

    return Kernel("bands", recipe=make, needs_finite=True)


def _bound(
    unit: BandUnit, constants: Mapping[str, Tensor], packed: PackedWeights, library: OneDnn
) -> Recipe:
    images = {RESULT, *(operand(at) for at, name in enumerate(unit.values) if name)}
    library = library.on(torch.float32)
    binding = UnitBinding(library, unit.graph, constants, packed, images)
    kernel = bind_directly(unit.unit, binding)
    try:
        recipe = None if kernel is None else kernel.recipe_on(1)
    except Unsupported:
        recipe = None
    is_plain = recipe is not None and not recipe.temporaries and recipe.results[0].images
    if recipe is None or not is_plain or not all(images for _, images in recipe.operands):
        raise InvalidArtefact(f"there is no kernel for bands of {unit.unit.name!r}")
    return recipe


def _actions(
    graph: OpGraph, band: Sequence[BandUnit], recipes: Sequence[Recipe], number: int, result: str
) -> tuple[list[Action], int]:
    """Actions of one band, whose values share the temporary ``number``, and its bytes."""
    made = [unit.output for unit in band]
    touched = dict.fromkeys(made, 0)
    for step, unit in enumerate(band):
        for name in (*unit.values, made[step]):
            if name in touched:
                touched[name] |= 1 << step
    lifetimes = {
        step: Lifetime(recipe.results[0].size_bytes, touched[name], (1 << step) - 1)
        for step, (name, recipe) in enumerate(zip(made, recipes, strict=True))
        if name != result
    }
    memory = plan_memory(lifetimes)
    at = {made[step]: offset for step, offset in memory.offsets.items()}

    def place(name: str, rows: range) -> Place:
        _, channels, _, width = (int(extent) for extent in graph.spec(name).shape)
        first = rows.start * width * channels * _ITEM_BYTES
        if name in at:
            return Place("temporary", number, at[name] + first)
        return Place("result" if name == result else "operand", 0, first)

    actions = []
    for unit, recipe, name in zip(band, recipes, made, strict=True):
        (action,) = recipe.actions
        places: dict[int, Place] = {}
        for argument, old in action.places.items():
            if old.kind == "result":
                rows = unit.result if name == result else range(len(unit.result))
                places[argument] = place(name, rows)
            else:
                position, _ = recipe.operands[old.index]
                places[argument] = place(unit.values[position], unit.rows[position])
        actions.append(Action(action.computation, action.fixed, places))
    return actions, memory.peak_bytes
