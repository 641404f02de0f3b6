"""Which values lie as images: those that a unit of another kind than elementwise has to do with."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.cpu.kernels.elementwise_units import image_values

IMAGES = TensorType("FP32", (1, 3, 8, 8))
ELEMENTWISE, OTHER = "aten.add", "aten.max_pool2d"


def graph_of(kinds: Sequence[str], reads: Sequence[tuple[int, int]]) -> OpGraph:
    """Unit i reads two of the values before it, v0 to vi, and makes the next one."""
    operators = tuple(
        Operator(f"o{i}", kind, (f"v{left % (i + 1)}", f"v{right % (i + 1)}"), (f"v{i + 1}",))
        for i, (kind, (left, right)) in enumerate(zip(kinds, reads, strict=True))
    )
    specs = {f"v{i + 1}": IMAGES for i in range(len(kinds))}
    return OpGraph("drawn", {"v0": IMAGES}, {"y": f"v{len(kinds)}"}, {}, operators, specs)


def expected(graph: OpGraph) -> set[str]:
    """Touched by other units; then by units that share a value with those, until none is added."""
    moving = [(unit, {*unit.inputs, *unit.outputs}) for unit in graph.operators]
    found = {value for unit, values in moving if unit.kind == OTHER for value in values}
    while True:
        more = {v for _, values in moving if not values.isdisjoint(found) for v in values}
        if more <= found:
            return found
        found |= more


UNITS = st.tuples(
    st.sampled_from([ELEMENTWISE] * 4 + [OTHER]), st.tuples(st.integers(0, 99), st.integers(0, 99))
)


@settings(max_examples=200, deadline=None)
@given(st.lists(UNITS, min_size=1, max_size=12))
def test_other_units_make_images_of_all_values_behind_elementwise_units(
    units: list[tuple[str, tuple[int, int]]],
) -> None:
    graph = graph_of([kind for kind, _ in units], [reads for _, reads in units])

    assert image_values(graph) == expected(graph)


def test_a_chain_of_ten_thousand_units_is_followed_to_its_beginning() -> None:
    kinds = [ELEMENTWISE] * 10_000
    reads = [(i, i) for i in range(len(kinds))]

    assert image_values(graph_of(kinds, reads)) == frozenset()
    kinds[-1] = OTHER
    assert len(image_values(graph_of(kinds, reads))) == 10_001
