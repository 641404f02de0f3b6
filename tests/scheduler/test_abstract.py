from __future__ import annotations

import json

import pytest

from braid.core.errors import InvalidArtefact
from braid.scheduler.abstract import load_abstract_graph


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
        ("{", "not JSON"),
        ("[]", "operators"),
        (document({"id": "x"}), "integer id"),
        (document({"id": True}), "integer id"),
        (document({"id": 1}, {"id": 1}), "same id"),
        (document({"id": 1, "inputs": [2]}, {"id": 2}), "reads 2, which does not stand before"),
        (document({"id": 1, "inputs": [1]}), "reads 1, which does not stand before"),
        (document({"id": 1, "inputs": "ab"}), "list of ids"),
        (document({"id": 1, "latency_us": -1}), "operator 1: latency_us"),
        (document({"id": 1, "latency_us": "4"}), "operator 1: latency_us"),
        ('{"operators": [{"id": 1, "latency_us": NaN}]}', "operator 1: latency_us"),
        (document({"id": 1}, group_overhead_us=None), "group_overhead_us"),
    ],
)
def test_what_is_not_a_graph_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidArtefact, match=message):
        load_abstract_graph(text)


def test_a_graph_may_be_empty() -> None:
    assert load_abstract_graph('{"operators": []}').ids == ()
