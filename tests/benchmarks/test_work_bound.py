"""What is left without a candidate, and bounds by an operator's work."""

import pytest

from benchmarks.ablation import table
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


def row(name: str, speedup: float, *also: str, remark: str = "") -> dict[str, object]:
    figures = {"speedup": speedup, "runs": 10, "latency_us": 1e5}
    return {"name": name, "also": also, "remark": remark, **figures}


def test_a_kind_loses_what_only_its_own_plans_gain() -> None:
    first = [row("sequential", 1.0), row("ios(r=3)", 1.1, "lios"), row("openvino", 1.21)]
    second = [row("sequential", 1.0), row("ios", 1.5, remark="errs"), row("openvino", 0.9)]
    networks = {"a": {"candidates": {"1": first}}, "b": {"candidates": {"1": second}}}
    kinds = {found["kind"]: found for found in table(networks)}
    assert kinds["openvino"]["most"] == pytest.approx(1.1)
    assert kinds["openvino"]["lost"] == pytest.approx(1.1**0.5)
    assert (kinds["openvino"]["best"], kinds["openvino"]["seconds"]) == (1, 1.0)
    assert kinds["ios"]["lost"] == kinds["lios"]["lost"] == kinds["sequential"]["lost"] == 1.0


def test_a_file_that_is_refused_takes_no_part() -> None:
    assert list(table({"a": {"error": "no"}, "b": {"candidates": {"1": [row("x", 0.0)]}}})) == []
