"""A merged unit: its one computation, and a copy of each unit's part of the output."""

from __future__ import annotations

import math
from dataclasses import replace

from braid.engine.onednn import floats
from braid.engine.onednn.library import DST, SRC, OneDnn
from braid.engine.onednn.recipe import Action, Place, Recipe
from braid.engine.program.kernel import Kernel
from braid.engine.program.kernel_choice import MergedUnit


def cut_by_copies(library: OneDnn, kernel: Kernel, merged: MergedUnit) -> Kernel:
    """``kernel``, which has a recipe for the merged unit, followed by copies of the parts."""

    def make(threads: int) -> Recipe:
        recipe = kernel.recipe_on(threads)
        assert recipe is not None
        with library.threads(threads):
            return _with_copies(library, recipe, merged)

    return Kernel(f"{kernel.variant}, merged", recipe=make, needs_finite=kernel.needs_finite)


def _with_copies(library: OneDnn, recipe: Recipe, merged: MergedUnit) -> Recipe:
    (first,), (result,) = recipe.actions, recipe.results
    whole = len(recipe.temporaries)  # where all parts lie together
    places = {
        argument: Place("temporary", whole) if place.kind == "result" else place
        for argument, place in first.places.items()
    }
    actions, start = [Action(first.computation, first.fixed, places)], 0
    for number, shape in enumerate(merged.parts):
        if result.images:
            copy = floats.slice_of_channels(library, shape, result.shape[1])
        else:
            copy = floats.slice_of_columns(
                library, math.prod(shape[:-1]), shape[-1], result.shape[-1]
            )
        source = Place("temporary", whole, result.dtype.itemsize * start)
        actions.append(Action(copy, {}, {SRC: source, DST: Place("result", number)}))
        start += shape[merged.axis]
    results = tuple(replace(result, shape=shape) for shape in merged.parts)
    return Recipe(tuple(actions), recipe.operands, results, (*recipe.temporaries, result))
