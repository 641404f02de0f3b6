import subprocess
import sys
from dataclasses import replace

import pytest

from braid.core.errors import InvalidArtefact
from braid.core.graph import Operator, OpGraph
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import stages_to_measure
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph
from tests.scheduler.oracle import graph_of


#   x ──> a0 ──> a1 ──> ...       two chains of equal convolutions, and an add that joins them
#    └──> b0 ──> b1 ──> ... ──> add
def two_chains(length: int, prefix: str = "") -> OpGraph:
    spec = TensorType("FP32", (1, 8, 4, 4))
    operators, ends = [], []
    for chain in "ab":
        value = "x"
        for i in range(length):
            out = f"{prefix}{chain}{i}"
            operators.append(
                Operator(out, "aten.convolution", (value, f"w_{out}", ""), (out,), {"groups": 1})
            )
            value = out
        ends.append(value)
    operators.append(Operator(f"{prefix}add", "aten.add", tuple(ends), ("y",)))
    return OpGraph(
        name=prefix or "chains",
        inputs={"x": spec},
        outputs={"y": "y"},
        constants={f"w_{op.name}": TensorType("FP32", (8, 8, 3, 3)) for op in operators[:-1]},
        operators=tuple(operators),
        specs={op.outputs[0]: spec for op in operators},
    )


def test_names_and_positions_do_not_count() -> None:
    ours, theirs = two_chains(3), two_chains(3, prefix="other_")

    assert stage_signature(ours, Stage(((1,),))) == stage_signature(theirs, Stage(((5,),)))
    assert stage_signature(ours, Stage(((0, 1), (3,)))) == stage_signature(
        ours, Stage(((0,), (3, 4)))
    )


def test_strategy_wiring_shape_and_attributes_count() -> None:
    graph = two_chains(3)
    wider = replace(graph, specs={**graph.specs, "a1": TensorType("FP32", (1, 16, 4, 4))})
    strided = list(graph.operators)
    strided[1] = replace(strided[1], attributes={"groups": 2})
    grouped = replace(graph, operators=tuple(strided))
    stage = Stage(((1,), (4,)))

    signatures = {
        stage_signature(graph, stage),
        stage_signature(graph, Stage(((1, 4),), "merge")),
        stage_signature(graph, Stage(((1, 2),))),  # wired inside the group
        stage_signature(graph, Stage(((0,), (3,)))),  # both read x: wired across groups
        stage_signature(wider, stage),
        stage_signature(grouped, stage),
    }

    assert len(signatures) == 6


def test_equal_stages_are_measured_once() -> None:
    graph = two_chains(3)
    options = PlannerSettings("ios")

    stages = stages_to_measure(graph, options)

    signatures = [stage_signature(graph, stage) for stage in stages]
    assert len(signatures) == len(set(signatures))
    assert len(stages_to_measure(graph_of(graph.predecessors()), options)) > len(stages)


def test_signatures_are_the_same_in_another_process() -> None:
    program = (
        "from tests.scheduler.test_signature import two_chains\n"
        "from braid.scheduler.signature import stage_signature\n"
        "from braid.core.schedule import Stage\n"
        "print(stage_signature(two_chains(3), Stage(((0, 1), (3,)))))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."},
    ).stdout.strip()

    assert printed == stage_signature(two_chains(3), Stage(((0, 1), (3,))))


def test_a_graph_without_shapes_is_refused_by_name() -> None:
    graph = replace(two_chains(1), specs={})

    with pytest.raises(InvalidArtefact, match=r"'a0'.*specialise"):
        UnitGraph.from_graph(graph)
