import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.records import Case, Load, Row, Turn, read_cases, write_case
from benchmarks.peers.report import write_report
from benchmarks.peers.results import Tally, compare, tally

ONE = Load(clients=1)
HALF = Load(part=0.5)


def turn(contender: str, p50_us: float, per_s: float, load: Load = ONE) -> Turn:
    return Turn(contender, load, 0, 10, {}, 1.0, p50_us, 2 * p50_us, per_s)


def case_of(*turns: Turn, model: str = "squeezenet") -> Case:
    facts = {"cpu": "Some CPU", "commit": "1234567890", "date": "2026-11-22T09:00:00"}
    rows = {each.contender: Row((1,), {}) for each in turns}
    return Case(model, "off", facts, 2, rows=rows, turns=list(turns))


def standings(case: Case) -> list[tuple[str, Mapping[str, float]]]:
    return [(each.metric, each.standing) for each in compare(case)]


def test_the_best_stands_at_one_and_others_behind_it() -> None:
    case = case_of(turn("braid", 2000, 400), turn("thirty_lines_ort", 1000, 500))

    assert standings(case) == [
        ("p50_us", {"braid": 0.5, "thirty_lines_ort": 1.0}),
        ("requests_per_s", {"braid": 0.8, "thirty_lines_ort": 1.0}),
    ]


def test_open_loops_are_compared_by_latency() -> None:
    case = case_of(turn("braid", 1000, 5, HALF), turn("other", 4000, 5, HALF))

    assert standings(case) == [
        ("p50_us", {"braid": 1.0, "other": 0.25}),
        ("p99_us", {"braid": 1.0, "other": 0.25}),
    ]


def test_a_failed_answer_takes_the_place_away() -> None:
    wrong = replace(turn("braid", 10, 9000), errors={"WRONG_ANSWER": 1})
    case = case_of(wrong, turn("thirty_lines_ort", 1000, 500))

    assert all(set(standing) == {"thirty_lines_ort"} for _, standing in standings(case))
    assert tally(compare(case)).worst == 0.0


def test_the_echo_is_no_peer() -> None:
    case = case_of(turn("echo", 1, 10_000), turn("braid", 1000, 500), model="identity")

    assert standings(case)[0] == ("p50_us", {"braid": 1.0})


def test_a_tally_counts_firsts_and_names_the_worst() -> None:
    case = case_of(
        *(turn("braid", 1000, 400), turn("thirty_lines_ort", 2000, 300), turn("x", 1000, 500))
    )
    place = "squeezenet, batching off, 1 client, requests/s"

    assert tally(compare(case)) == Tally(1, 2, 0.8, place)
    assert tally(compare(case), against="thirty_lines_ort").first == 2
    assert math.isnan(tally([]).worst)


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    case = case_of(turn("braid", 2000, 400), turn("x", 1000, 500, HALF))

    write_case(case, tmp_path)

    (read,) = read_cases(tmp_path)
    assert read.environment.items() >= case.environment.items()
    assert replace(read, environment=case.environment) == case


@pytest.mark.parametrize("p50_us", [1000, 1500])
def test_the_report_says_who_is_first(tmp_path: Path, p50_us: float) -> None:
    case = case_of(turn("braid", p50_us, 500), turn("thirty_lines_ort", 1200, 450))

    text = write_report([case], tmp_path)

    is_first = p50_us < 1200
    place = "squeezenet, batching off, 1 client, p50"
    assert (f"| {place} | thirty_lines_ort | 0.80 |" in text) == (not is_first)
    assert f"| p50 and requests/s, closed loops | {2 if is_first else 1} of 2" in text
    assert "1234567" in text
