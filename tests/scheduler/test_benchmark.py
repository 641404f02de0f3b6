"""The abstract benchmark: its graphs and its device."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import planners
from benchmarks.structures import bert_base, googlenet, resnet50
from benchmarks.synthetic import DEVICES, DeviceModel, SyntheticDevice, UnitLoad
from braid.core.errors import InvalidArtefact
from braid.core.plan import Launch, StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.abstract import load_abstract_graph
from braid.scheduler.lowering import lower_stages
from tests.scheduler.oracle import graph_of

# Units that compute only, each on a quarter of the device: 400 / (100 * 1/4 * 0.4..0.9)
QUARTERS = [UnitLoad(flops=400.0, bytes=0.0, elements=25.0)] * 8
MODEL = DeviceModel("test", 100.0, 100.0, elements=100.0, interference=0.0)
GRAPH = graph_of([[]] * 8)


def same_device() -> SyntheticDevice:
    """All units equal: one signature, so one efficiency."""
    graph = replace(GRAPH, signatures=("same",) * 8)
    return SyntheticDevice(MODEL, graph, QUARTERS, seed=0)


def test_four_quarters_fill_the_device_and_eight_take_twice_as_long() -> None:
    device = same_device()
    fixed = MODEL.stage_us + MODEL.launch_us

    def body_us(groups: int) -> float:
        stage = Stage(tuple((unit,) for unit in range(groups)))
        return device.stage_latency_us(stage) - fixed - MODEL.group_us * (groups - 1)

    assert body_us(4) == pytest.approx(body_us(1))
    assert body_us(8) == pytest.approx(2 * body_us(1))


def test_a_plan_with_barriers_takes_the_sum_of_its_stages() -> None:
    device = same_device()
    stages = [Stage(((0, 1), (2,))), Stage(((3,), (4,), (5,))), Stage(((6, 7),))]

    plan = lower_stages(stages, GRAPH.predecessors)

    assert device.plan_latency_us(plan) == pytest.approx(
        sum(device.stage_latency_us(stage) for stage in stages)
    )


def test_a_wait_costs_an_event() -> None:
    device = same_device()
    launches = (Launch(0, 0), Launch(1, 1, waits=(0,)))

    waiting = device.plan_latency_us(StreamPlan(launches, streams=2))

    alone = device.stage_latency_us(Stage(((0, 1),)))
    assert waiting == pytest.approx(alone + MODEL.event_us + MODEL.group_us)


def test_interference_slows_and_seeds_differ() -> None:
    calm = SyntheticDevice(MODEL, GRAPH, QUARTERS, 0)
    busy = SyntheticDevice(replace(MODEL, interference=0.1), GRAPH, QUARTERS, 0)
    other = SyntheticDevice(MODEL, GRAPH, QUARTERS, 1)
    stage = Stage(((0,), (1,)))

    assert busy.stage_latency_us(stage) > calm.stage_latency_us(stage)
    assert other.stage_latency_us(stage) != calm.stage_latency_us(stage)


def test_the_networks_built_here_have_their_known_sizes() -> None:
    giga = {
        net.name: sum(load.flops for load in net.loads) / 1e9
        for net in (googlenet(), resnet50(), bert_base())
    }

    assert giga["resnet50"] == pytest.approx(8.2, rel=0.05)  # 4.1 billion multiply-adds
    assert giga["googlenet"] == pytest.approx(3.0, rel=0.1)
    assert giga["bert-base"] == pytest.approx(22.5, rel=0.05)


def test_it_runs_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["planners", "--networks", "resnet50", "--seeds", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)

    planners.main()

    report = json.loads((tmp_path / "planners.json").read_text())
    assert {result["planner"] for result in report["results"]} >= {"ios", "lazy-ios", "nimble"}
    assert set(report["devices"]) == {"large", "medium"} <= set(DEVICES)
    assert "no other planner beats ios on" in capsys.readouterr().out


def document(*operators: dict[str, object], **fields: object) -> str:
    return json.dumps({"operators": operators, **fields})


def test_unknown_ids_are_external_values() -> None:
    graph = load_abstract_graph(
        document(
            {"id": 7, "name": "a", "inputs": [1, 2], "latency_us": 4},
            {"id": 3, "name": "b", "inputs": [7, 2], "latency_us": 2.5},
            group_overhead_us=5,
        )
    )

    assert graph.ids == (7, 3)
    assert graph.units.predecessors == ((), (0,))
    assert graph.units.operands[0][1] == graph.units.operands[1][1]  # both read value 2
    assert list(graph.cost.latency_us) == [4.0, 2.5]
    assert graph.cost.group_overhead_us == 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "Expected `object`"),
        (document({"id": "x"}), r"operators\[0\]\.id"),
        (document({"id": True}), r"operators\[0\]\.id"),
        (document({"id": 1}, {"id": 1}), "same id"),
        (document({"id": 1, "inputs": [2]}, {"id": 2}), "reads 2, which does not stand before"),
        (document({"id": 1, "inputs": [1]}), "reads 1, which does not stand before"),
        (document({"id": 1, "inputs": "ab"}), r"operators\[0\]\.inputs"),
        (document({"id": 1, "latency_us": -1}), r"operators\[0\]\.latency_us"),
        (document({"id": 1, "latency_us": "4"}), r"operators\[0\]\.latency_us"),
        ('{"operators": [{"id": 1, "latency_us": NaN}]}', "cannot be read"),
        (document({"id": 1}, group_overhead_us=None), "group_overhead_us"),
    ],
)
def test_what_is_not_a_graph_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidArtefact, match=message):
        load_abstract_graph(text)


def test_a_graph_may_be_empty() -> None:
    assert load_abstract_graph('{"operators": []}').ids == ()
