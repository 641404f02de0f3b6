"""Rules for operators: when their results keep the rows of their operands apart.

Most rules label dimensions, as einsum does: a dimension of an operand and the dimension of a result
that has the same label belong together, index by index. ``None`` labels a dimension along which
elements meet. Rows stay apart where all operands made of rows have them under one label, and the
results have that label, too.

    matmul      a [0, 1, m, None]   b [0, 1, None, n]   ->   [0, 1, m, n]
    convolution x ["rows", None, None, None]            ->   ["rows", None, None, None]

The walk compares the resulting facts with the shapes in both batches. A kind without a rule does
not keep rows apart as far as is known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from braid.engine.importer.rows.facts import SAME, Fact, Places, Rows, RowsMeet, Shape, Site
from braid.engine.ops.families.shape import normal_axis, sliced_positions
from braid.engine.ops.kinds import OPS
from braid.engine.passes.spelling import axis_names

Label = int | str | None
Labels = Sequence[Label]
Labelled = tuple[Sequence[Labels], Sequence[Labels]]
Labelling = Callable[[Site], Labelled]  # labels of operands, the last may lack, and of results
Rule = Callable[[Site], Sequence[Fact]]

ROWS = "rows"


def labelled(labelling: Labelling) -> Rule:
    def rule(site: Site) -> list[Fact]:
        operands, results = labelling(site)
        found = set()
        for place, fact in enumerate(site.facts):
            if isinstance(fact, Rows):
                labels = operands[place] if place < len(operands) else ()
                label = labels[fact.axis] if fact.axis < len(labels) else None
                found.add((label, fact.outer, fact.inner))
        if len(found) != 1:
            raise RowsMeet("combines rows along different dimensions")
        label, outer, inner = found.pop()
        if label is None:
            raise RowsMeet("works across the rows")
        if any(label not in labels for labels in results):
            raise RowsMeet("drops the rows")
        return [Rows(labels.index(label), outer, inner) for labels in results]

    return rule


def _broadcast(rank: int, result: int) -> Labels:
    return range(result - rank, result)


def _elementwise(site: Site) -> Labelled:
    result = site.result_ranks[0]
    return [_broadcast(rank, result) for rank in site.ranks], [range(result)]


def _without(axes: Iterable[int], rank: int) -> list[Label]:
    """Labels of an operand whose elements meet along ``axes``."""
    met = {normal_axis(axis, rank) for axis in axes}
    return [None if axis in met else axis for axis in range(rank)]


def _after(labels: Labels, rank: int) -> list[Label]:
    """Labels of a result of this rank: without the axes that were met, or with them."""
    return list(labels) if rank == len(labels) else [label for label in labels if label is not None]


def _along(site: Site, axes: Iterable[int]) -> Labelled:
    labels = _without(axes, site.ranks[0])
    return [labels], [_after(labels, rank) for rank in site.result_ranks]


def _listed(value: object) -> list[int]:
    return [int(axis) for axis in value] if isinstance(value, list | tuple) else [int(value)]  # type: ignore[call-overload]


def over(name: str, default: int = -1) -> Labelling:
    """Labels of kinds that work along the axes in an attribute, all others kept apart."""
    return lambda site: _along(site, _listed(site.attributes.get(name, default)))


def _fold(site: Site) -> Labelled:
    dims = site.attributes.get("dims")
    if not dims:
        is_none = site.attributes.get("noop", False) and dims is not None
        return _along(site, [] if is_none else range(site.ranks[0]))
    return _along(site, _listed(dims))


def _from_axis(site: Site) -> Labelled:
    first = normal_axis(int(site.attributes["axis"]), site.ranks[0])
    return _along(site, range(first, site.ranks[0]))


def leading(*others: int) -> Labelling:
    """Labels of kinds whose dimension 0 is the batch, in operand 0 and in ``others``."""

    def labelling(site: Site) -> Labelled:
        if not isinstance(site.facts[0], Rows):
            raise RowsMeet("has its rows in another operand than the first")
        operands = [[ROWS] if place in (0, *others) else [] for place in range(len(site.ranks))]
        return operands, [[ROWS] for _ in site.result_ranks]

    return labelling


def along(*axes: int) -> Labelling:
    return lambda site: _along(site, axes)


def _matmul(site: Site, left: int = 0, right: int = 1) -> Labelled:
    a, b = site.ranks[left], site.ranks[right]
    batch = max(a, b) - 2
    operands: list[Labels] = [()] * len(site.ranks)
    operands[left] = [*range(batch - (a - 2), batch), "m", None] if a > 1 else [None]
    operands[right] = [*range(batch - (b - 2), batch), None, "n"] if b > 1 else [None]
    result = [*range(max(0, batch)), *(["m"] if a > 1 else []), *(["n"] if b > 1 else [])]
    return operands, [result]


def _linear(site: Site) -> Labelled:
    rank = site.ranks[0]
    kept = [*range(rank - 1)]
    summand = [*_broadcast(site.ranks[3], rank)][:-1] if len(site.ranks) > 3 else []
    return [[*kept, None], (), (), [*summand, None]], [[*kept, None]]


def _einsum(site: Site) -> Labelled:
    shapes = [*site.shapes[0], site.results[0][0]]
    names = axis_names(site.attributes["equation"], shapes)
    if names is None:
        raise RowsMeet("is an einsum of an unusual form")
    return names[:-1], names[-1:]


def _attention(site: Site) -> Labelled:
    """Queries, keys, values, mask, cache and lengths have the batch as their dimension 0."""
    mask = site.ranks[3] if len(site.ranks) > 3 else 4
    if mask != 4 and isinstance(site.facts[3], Rows):
        raise RowsMeet("has a mask whose first dimension is not the batch")
    return [[ROWS]] * len(site.ranks), [[ROWS]] * len(site.result_ranks)


def _recurrent(site: Site) -> Labelled:
    first = bool(site.attributes.get("batch_first"))
    x: Labels = [ROWS] if first else [None, ROWS]
    y: Labels = [ROWS] if first else [None, None, ROWS]
    return [x, [], x, x], [y, x, x][: len(site.result_ranks)]


def _permute(site: Site) -> Labelled:
    dims = site.attributes.get("dims")
    order = range(site.ranks[0])[::-1] if dims is None else [d % site.ranks[0] for d in dims]
    return [range(site.ranks[0])], [order]


def _reshape(site: Site) -> list[Fact]:
    """Rows stay whole where the elements before them and behind them do."""
    (fact,) = site.facts[:1]
    assert isinstance(fact, Rows)
    source, target = site.shapes[0][0], site.results[0][0]
    axis = only_axis(target, site.results[1][0])
    outer = prod(source[: fact.axis]) * fact.outer
    inner = prod(source[fact.axis + 1 :]) * fact.inner
    before, behind = prod(target[:axis]), prod(target[axis + 1 :])
    if not before or not behind or outer % before or inner % behind:
        raise RowsMeet("joins parts of different rows")
    return [Rows(axis, outer // before, inner // behind)]


def only_axis(few: Shape, many: Shape) -> int:
    """The one axis whose extent follows the batch; raises ``RowsMeet`` for none or several."""
    axes = [i for i, pair in enumerate(zip(few, many, strict=False)) if pair[0] != pair[1]]
    if len(axes) != 1 or len(few) != len(many):
        raise RowsMeet(f"joins or drops rows: {list(few)}, and {list(many)} with a row more")
    return axes[0]


def _slice(site: Site) -> Labelled:
    met = set[int]()
    for operator, shapes in zip(site.operators, site.shapes, strict=True):
        given, shape = operator.attributes, shapes[0]
        starts, ends = _listed(given["starts"]), _listed(given["ends"])
        axes = given.get("axes")
        steps = given.get("steps")
        taken = sliced_positions(
            shape,
            starts,
            ends,
            range(len(starts)) if axes is None else _listed(axes),
            [1] * len(starts) if steps is None else _listed(steps),
        )
        met |= {i for i, positions in enumerate(taken) if positions != range(shape[i])}
    return _along(site, met)


def _pad(site: Site) -> Labelled:
    pads, rank = _listed(site.attributes["pads"]), site.ranks[0]
    axes = site.attributes.get("axes")
    named = range(rank) if axes is None else _listed(axes)
    half = len(pads) // 2
    met = [axis for i, axis in enumerate(named) if pads[i] or pads[half + i]]
    return _along(site, met)


def _tile(site: Site) -> Labelled:
    repeats = _listed(site.attributes["repeats"])
    return _along(site, [axis for axis, count in enumerate(repeats) if count != 1])


def _cat(site: Site) -> list[Fact]:
    axis = normal_axis(int(site.attributes["dim"]), site.ranks[0])
    labels = _without([axis], site.ranks[0])
    if not all(isinstance(fact, Rows | Places) for fact in site.facts):
        raise RowsMeet("puts values without rows beside rows")
    first, last = site.facts[0], site.ranks[0] - 1
    (result,) = labelled(lambda _: ([labels] * len(site.ranks), [labels]))(site)
    assert isinstance(result, Rows)
    if any(isinstance(fact, Places) for fact in site.facts) and not (
        isinstance(first, Places)
        and first.are_rows
        and (first.axis, last) == (result.axis, axis)
        and not any(isinstance(fact, Places) for fact in site.facts[1:])
    ):
        raise RowsMeet("computes with the places of rows")
    has_place = isinstance(first, Places) or (
        axis == last and isinstance(first, Rows) and first.has_place
    )
    return [Rows(result.axis, result.outer, result.inner, has_place)]


def _gather(site: Site) -> list[Fact]:
    x, indices = site.facts
    axis = normal_axis(int(site.attributes.get("axis", 0)), site.ranks[0])
    if isinstance(x, Places):
        raise RowsMeet("computes with the places of rows")
    if not isinstance(indices, Places):
        return list(labelled(_gathered)(site))
    is_own = isinstance(x, Rows) and (x.axis, x.outer, x.inner) == (axis, 1, indices.step)
    if is_own and 0 <= indices.least <= indices.most < indices.step:
        return [Rows(axis + indices.axis)]
    raise RowsMeet("computes with the places of rows")


def _gathered(site: Site) -> Labelled:
    axis = normal_axis(int(site.attributes.get("axis", 0)), site.ranks[0])
    labels = _without([axis], site.ranks[0])
    indices = [f"index {i}" for i in range(site.ranks[1])]
    return [labels, indices], [[*labels[:axis], *indices, *labels[axis + 1 :]]]


def _gather_elements(site: Site) -> Labelled:
    axis = normal_axis(int(site.attributes.get("axis", 0)), site.ranks[0])
    labels = _without([axis], site.ranks[0])
    if isinstance(site.facts[0], Rows):
        if site.facts[1] is SAME:
            raise RowsMeet("reads some of the rows")
        return [labels] * 2, [labels]
    indices = [label if i == axis else None for i, label in enumerate(range(site.ranks[1]))]
    return [[], indices], [indices]  # other axes of the table would be read by place


def _scatter_elements(site: Site) -> Labelled:
    labels = _without([int(site.attributes.get("axis", 0))], site.ranks[0])
    if not all(isinstance(fact, Rows) for fact in site.facts):
        raise RowsMeet("changes some of the rows")
    return [labels] * 3, [labels]


def _gather_nd(site: Site) -> list[Fact]:
    shared = int(site.attributes.get("batch_dims", 0))
    tuples, rank = site.facts[1], site.ranks[1]
    if isinstance(site.facts[0], Places):
        raise RowsMeet("computes with the places of rows")
    if isinstance(tuples, Rows) and tuples.has_place:
        if shared or site.facts[0] != Rows(0) or tuples.outer * tuples.inner != 1:
            raise RowsMeet("computes with the place of a row")
        return [Rows(tuples.axis)]
    both = [*range(shared)]
    places = [f"index {i}" for i in range(shared, rank - 1)]
    rest = [f"rest {i}" for i in range(site.result_ranks[0] - shared - len(places))]
    looked_up = [None] * (site.ranks[0] - shared - len(rest))
    operands: list[Labels] = [[*both, *looked_up, *rest], [*both, *places, None]]
    return list(labelled(lambda _: (operands, [[*both, *places, *rest]]))(site))


def _scatter_nd(site: Site) -> list[Fact]:
    """Each row is written into itself where the tuples begin with its place."""
    tuples, updates = site.facts[1:3]
    if site.facts[0] != Rows(0) or not isinstance(tuples, Rows) or not tuples.has_place:
        raise RowsMeet("changes rows by their places")
    if updates is not SAME and updates != Rows(tuples.axis, tuples.outer, tuples.inner):
        raise RowsMeet("changes rows by other rows")
    return [Rows(0)]


def _one_hot(site: Site) -> Labelled:
    rank = site.result_ranks[0]
    axis = normal_axis(int(site.attributes.get("axis", -1)), rank)
    labels = [*range(rank - 1)]
    return [labels], [[*labels[:axis], None, *labels[axis:]]]


def _resize(site: Site) -> Labelled:
    """Axes that keep their extent are kept apart, unless a part is cropped."""
    given, rank = site.attributes, site.ranks[0]
    axes, scales = given.get("axes"), given.get("scales")
    named = range(rank) if axes is None else [axis % rank for axis in axes]
    met = set(named)
    if given.get("coordinates") != "tf_crop_and_resize" and given.get("policy") in (
        None,
        "stretch",
    ):
        before, after = site.shapes[0][0], site.results[0][0]
        kept = [float(before[axis] == after[axis]) for axis in named]
        met = {axis for axis, scale in zip(named, scales or kept, strict=True) if scale != 1}
    return _along(site, met)


def _reverse_sequence(site: Site) -> Labelled:
    batch, rank = int(site.attributes["batch_axis"]), site.ranks[0]
    labels = _without([int(site.attributes["time_axis"])], rank)
    return [labels, [labels[normal_axis(batch, rank)]]], [labels]


def _cast_like(site: Site) -> list[Fact]:
    fact = site.facts[0]
    assert isinstance(fact, Rows) or fact is SAME
    return [fact]


def _quantise(site: Site) -> Labelled:
    """Scales that come with the rows have the form of the operand."""
    rank = site.ranks[0]
    alike = [range(rank) if r == rank else () for r in site.ranks]
    return alike, [range(rank)]


_ELEMENTWISE = frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "mul", "div", "where", "remainder", "fmod", "maximum", "minimum"),
        *("eq", "lt", "le", "gt", "ge", "isnan", "clamp"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    )
) | {f"braid.{name}" for name in (
    *("pow", "prelu", "cast", "bit_cast", "identity", "isinf", "weighted_sum"),
    *("full_like", "expand"),
)}  # fmt: skip

_LEADING = (
    *("aten.convolution", "braid.conv_transpose_to", "braid.convolution_integer"),
    *("braid.pad_same", "braid.max_pool", "braid.avg_pool", "braid.global_avg_pool"),
    *("braid.global_max_pool", "braid.instance_norm", "braid.group_norm", "braid.lrn"),
    *("braid.depth_to_space", "braid.space_to_depth", "braid.col2im", "braid.stft"),
)

_FOLDS = (
    *("aten.amax", "aten.amin", "aten.sum", "aten.mean", "aten.logsumexp", "braid.prod"),
    *("braid.l1_norm", "braid.l2_norm", "braid.log_sum", "braid.sum_square"),
)

_OVER_DIM = (
    *("aten.softmax", "aten.log_softmax", "aten.select", "braid.hardmax", "braid.lp_normalise"),
    *("braid.cumsum", "braid.cumprod", "braid.topk"),
)

_LABELLINGS: Mapping[str, Labelling] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys((kind for kind, entry in OPS.items() if entry.pointwise), _elementwise),
    **dict.fromkeys(_LEADING, leading()),
    **dict.fromkeys(_FOLDS, _fold),
    **dict.fromkeys(_OVER_DIM, over("dim")),
    **dict.fromkeys(("braid.argmax", "braid.argmin"), over("dim", 0)),
    **dict.fromkeys(
        ("aten.layer_norm", "braid.from_axis", "braid.layer_norm_statistics", "braid.rms_norm"),
        _from_axis,
    ),
    **dict.fromkeys(("aten.matmul", "braid.matmul_integer"), _matmul),
    **dict.fromkeys(("aten.linear", "braid.linear_add"), _linear),
    **dict.fromkeys(("braid.quantise", "braid.dequantise"), _quantise),
    "aten.batch_norm": along(1),
    "aten.einsum": _einsum,
    "aten.grid_sample": leading(1),
    "aten.permute": _permute,
    "braid.attention": _attention,
    "braid.convolution_add": leading(3),
    "braid.dft": over("axis", -2),
    "braid.gather_elements": _gather_elements,
    "braid.one_hot": _one_hot,
    "braid.pad": _pad,
    "braid.quantised_matmul": lambda site: _matmul(site, 0, 3),
    "braid.recurrent": _recurrent,
    "braid.resize": _resize,
    "braid.reverse_sequence": _reverse_sequence,
    "braid.scatter_elements": _scatter_elements,
    "braid.slice": _slice,
    "braid.split": over("axis", 0),
    "braid.tile": _tile,
    "braid.trilu": along(-2, -1),
}

RULES: Mapping[str, Rule] = {
    **{kind: labelled(labelling) for kind, labelling in _LABELLINGS.items()},
    **dict.fromkeys(
        ("braid.flatten", "braid.reshape", "braid.squeeze", "braid.unsqueeze"), _reshape
    ),
    "aten.cat": _cat,
    "braid.cast_like": _cast_like,
    "braid.gather": _gather,
    "braid.gather_nd": _gather_nd,
    "braid.scatter_nd": _scatter_nd,
}

TAKES_PLACES = frozenset({"aten.cat", "braid.gather", "braid.gather_nd", "braid.scatter_nd"})
"""Kinds whose rules know of the places of rows."""
