"""The last block of Inception V3, planned by ``ios`` on a synthetic device: something to draw."""

from __future__ import annotations

from benchmarks.structures import unit_load
from benchmarks.synthetic import DEVICES, SyntheticDevice
from braid.core.graph import Operator, OpGraph
from braid.core.schedule import Provenance, Schedule, ScheduleKey, Stage
from braid.core.tensor import TensorType
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.units import UnitGraph

#   x ─> b0 (1x1) ─────────────────────────────────┐
#   x ─> b1 (1x1) ─┬─> b1a (1x3) ──────────────────┤
#                  └─> b1b (3x1) ──────────────────┤
#   x ─> b2 (1x1) ─> b2x (3x3) ─┬─> b2a (1x3) ─────┼─> join
#                               └─> b2b (3x1) ─────┤
#   x ─> pool ─> b3 (1x1) ─────────────────────────┘
CONVOLUTIONS = (
    ("b0", "x", 2048, 320, (1, 1)),
    ("b1", "x", 2048, 384, (1, 1)),
    ("b1a", "b1", 384, 384, (1, 3)),
    ("b1b", "b1", 384, 384, (3, 1)),
    ("b2", "x", 2048, 448, (1, 1)),
    ("b2x", "b2", 448, 384, (3, 3)),
    ("b2a", "b2x", 384, 384, (1, 3)),
    ("b2b", "b2x", 384, 384, (3, 1)),
)


def inception_e(batch: int = 1) -> OpGraph:
    """The block as a static graph, convolutions with their activation."""

    def image(channels: int) -> TensorType:
        return TensorType("FP32", (batch, channels, 8, 8))

    specs = {"x": image(2048), "pool": image(2048), "b3": image(192), "join": image(2048)}
    constants = {"b3.w": TensorType("FP32", (192, 2048, 1, 1))}
    operators = []
    for name, source, inner, outer, kernel in CONVOLUTIONS:
        specs[name] = image(outer)
        constants[f"{name}.w"] = TensorType("FP32", (outer, inner, *kernel))
        operators.append(_convolution(name, source))
    operators += [
        Operator("pool", "aten.avg_pool2d", ("x",), ("pool",)),
        _convolution("b3", "pool"),
        Operator(
            "join", "aten.cat", ("b0", "b1a", "b1b", "b2a", "b2b", "b3"), ("join",), {"dim": 1}
        ),
    ]
    graph = OpGraph(
        "inception_e", {"x": specs.pop("x")}, {"y": "join"}, constants, tuple(operators), specs
    )
    graph.verify()
    return graph


def _convolution(name: str, source: str) -> Operator:
    return Operator(
        name, "aten.convolution", (source, f"{name}.w"), (name,), {"epilogue": [["aten.relu"]]}
    )


def planned(batch: int = 1, device: str = "large", planner: str = "ios") -> Schedule:
    """A schedule of the block, with the latencies of the synthetic device."""
    graph = inception_e(batch)
    units = UnitGraph.from_graph(graph)
    loads = tuple(unit_load(graph, op) for op in graph.operators)
    synthetic = SyntheticDevice(DEVICES[device], units, loads, seed=0)
    options = PlannerSettings(planner)
    result = plan(units, synthetic, options)
    alone = {
        op.name: synthetic.stage_latency_us(Stage(((i,),))) for i, op in enumerate(graph.operators)
    }
    return Schedule(
        ScheduleKey("ab" * 32, f"{device}:synthetic", batch, planner=options.text),
        planner,
        result.plan,
        result.stages,
        tuple(op.name for op in graph.operators),
        Provenance(
            predicted_us=result.predicted_us,
            measured_us=synthetic.plan_latency_us(result.plan),
            sequential_us=sum(alone.values()),
            unit_us=alone,
        ),
    )
