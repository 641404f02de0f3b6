import pytest

from benchmarks.work_bound import UnitTimes, bound_of
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType

SPEC = TensorType("FP32", (1, 4))


#   x ──> a ──> b ──> d      b and c are independent
#          └──> c ──┘
def diamond() -> OpGraph:
    operators = (
        Operator("a", "aten.relu", ("x",), ("a",)),
        Operator("b", "aten.relu", ("a",), ("b",)),
        Operator("c", "aten.relu", ("a",), ("c",)),
        Operator("d", "aten.add", ("b", "c"), ("d",)),
    )
    return OpGraph("diamond", {"x": SPEC}, {"y": "d"}, {}, operators, dict.fromkeys("abcd", SPEC))


def test_units_that_use_all_cores_alone_leave_nothing_to_gain() -> None:
    bound = bound_of(diamond(), [UnitTimes(name, 10.0, 20.0) for name in "abcd"], 2)

    assert (bound.sequential_us, bound.work_us, bound.path_us) == (40.0, 40.0, 30.0)
    assert bound.gain == 1


def test_units_that_no_second_core_helps_gain_what_their_longest_path_leaves() -> None:
    times = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0}
    bound = bound_of(diamond(), [UnitTimes(n, us, us) for n, us in times.items()], 2)

    assert (bound.work_us, bound.path_us) == (20.0, 30.0)
    assert bound.gain == pytest.approx(4 / 3)


def test_a_unit_that_is_faster_on_one_core_counts_so() -> None:
    bound = bound_of(diamond(), [UnitTimes(name, 12.0, 8.0) for name in "abcd"], 2)

    assert bound.path_us == 24.0
    assert bound.work_us == 16.0
