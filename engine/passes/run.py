"""The order of the passes, and the verifier after each."""

from collections.abc import Sequence

from torch import Tensor

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.kinds import EPILOGUE, epilogue_steps, op
from braid.engine.passes.affine import fold_affine, matmul_to_linear
from braid.engine.passes.attention import fuse_attention
from braid.engine.passes.body import Pass, Weights, all_operators
from braid.engine.passes.clean import drop_dead, drop_no_ops, merge_duplicates
from braid.engine.passes.folding import (
    drop_expansions,
    flatten_concats,
    fold_constants,
    fold_gathers,
    fold_pads,
    fold_pooled_views,
    fold_view_chains,
)
from braid.engine.passes.fusion import (
    convolve_parts,
    fuse_epilogues,
    fuse_flat_linears,
    fuse_residuals,
    fuse_weighted_sums,
)
from braid.engine.passes.group_norms import fuse_group_norms
from braid.engine.passes.image_rows import sequences_to_images
from braid.engine.passes.patterns import recognise_activations, recognise_norms
from braid.engine.passes.rotations import fuse_rotations

PASSES: tuple[Pass, ...] = (
    drop_no_ops,
    fold_constants,
    drop_no_ops,  # what folding made trivial
    fold_view_chains,
    drop_no_ops,  # permutations that cancel out
    matmul_to_linear,
    merge_duplicates,
    fold_affine,
    recognise_activations,
    recognise_norms,
    fold_pads,
    flatten_concats,
    fold_pooled_views,
    sequences_to_images,
    drop_dead,
    fuse_epilogues,
    convolve_parts,
    drop_dead,
)


def fuse_static(graph: OpGraph, constants: Weights) -> OpGraph:
    """What passes make of a static graph, where shapes and summands are known."""
    graph = drop_expansions(fold_gathers(graph, constants), constants)
    graph = fuse_flat_linears(graph, constants)
    graph = fuse_rotations(graph, constants)
    graph = fuse_attention(graph, constants)
    graph = fuse_group_norms(graph, constants)
    return fuse_weighted_sums(fuse_residuals(graph), constants)


_CONTROL = frozenset({"braid.cond"})  # kinds that the registry does not run


def run_passes(
    template: OpGraph, weights: Weights, passes: Sequence[Pass] = PASSES
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Each operator of the result is one unit; ``InvalidArtefact`` names the pass that erred."""
    verify_template(template, weights, "the lowering")
    for rewrite in passes:
        template, weights = rewrite(template, weights)
        verify_template(template, weights, f"pass {rewrite.__name__}")
    return template, dict(weights)


def verify_template(template: OpGraph, weights: Weights, author: str) -> None:
    """Raise ``InvalidArtefact``, naming ``author``, for a wrong graph, kinds or constants."""
    try:
        template.verify()
        for operator in all_operators(template.operators):
            if operator.kind not in _CONTROL:
                op(operator.kind)
                epilogue_steps(operator.attributes.get(EPILOGUE, []))
        _verify_weights(template, weights)
    except InvalidArtefact as error:
        raise InvalidArtefact(f"{author} broke the graph: {error}") from error


def _verify_weights(template: OpGraph, weights: Weights) -> None:
    if set(weights) != set(template.constants):
        odd = sorted(set(weights) ^ set(template.constants))
        raise InvalidArtefact(f"constants and weights differ in {odd[:5]}")
    for name, spec in template.constants.items():
        if spec_of(weights[name]) != spec:
            raise InvalidArtefact(f"constant {name!r} is {spec_of(weights[name])}, not {spec}")
