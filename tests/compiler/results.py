"""Schedules and graphs for tests that store them."""

from braid.core.graph import Operator, OpGraph
from braid.core.plan import sequential_plan
from braid.core.schedule import Schedule, ScheduleKey, Stage
from braid.core.tensor import TensorType

MODEL = "ab" * 32


def schedule(batch_size: int = 1, latency_us: float = 5.0, model: str = MODEL) -> Schedule:
    """A schedule of two units for the device cpu-a."""
    key = ScheduleKey(model, "cpu-a", batch_size)
    stage = Stage(((0,), (1,)), latency_us=latency_us)
    return Schedule(key, "ios", sequential_plan(2), (stage,), ("conv", "pool"))


def graph(*units: str) -> OpGraph:
    spec = TensorType("FP32", (1, 8))
    operators = tuple(Operator(unit, "relu", ("x",), (unit,)) for unit in units)
    return OpGraph("two", {"x": spec}, {"y": units[0]}, {}, operators, dict.fromkeys(units, spec))
