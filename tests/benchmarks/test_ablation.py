import pytest

from benchmarks.ablation import table


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
