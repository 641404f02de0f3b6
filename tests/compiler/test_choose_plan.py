"""Which way of running a model serves, given what each one showed."""

from __future__ import annotations

import math
from statistics import median

import pytest

from braid.compiler.choose_plan import ComparedPlans, PlanChoice, choose_plan
from braid.compiler.choose_precision import choose_precision
from braid.core.measurement import PlanMeasurement
from braid.core.plan import Launch, StreamPlan, sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.scheduler.planners import Planned

SEQUENTIAL = sequential_plan(3)
PARALLEL = StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 1)), streams=2)
JOINED = StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 0, (1,))), streams=2)
FIELD = ComparedPlans.of(
    [Planned("lios", JOINED, ()), Planned("greedy", PARALLEL, ())], 3, [ONNXRUNTIME]
)


def ran(latency_us: float, *, runs: int = 9, error: float = 0.0) -> PlanMeasurement:
    return PlanMeasurement(latency_us, 0.02, runs, (100 / latency_us,) * min(runs, 9), error, error)


def took(*turns_us: float) -> PlanMeasurement:
    """Stayed to the end; the sequential plan takes 100, 110, 120 ... in its turns."""
    ratios = [sequential / turn for sequential, turn in zip(TURNS_US, turns_us, strict=True)]
    return PlanMeasurement(median(turns_us), 0.02, 99, tuple(ratios), 0.0, 0.0, turns_us=turns_us)


TURNS_US = tuple(100.0 + 10 * turn for turn in range(12))  # a machine that slows down


def chosen(*measurements: PlanMeasurement) -> tuple[str, str]:
    """Who serves, and whose plan runs if ONNX Runtime cannot."""
    choice: PlanChoice = choose_plan(FIELD, measurements, 1e-4, choose=True)
    names = [contender.name for contender in choice.contenders]
    return names[choice.chosen], names[choice.fallback]


def test_the_fastest_wins_and_the_best_of_our_own_stands_by() -> None:
    assert chosen(ran(100), ran(90), ran(95), ran(80)) == ("onnxruntime", "lios")
    assert chosen(ran(100), ran(90), ran(95), ran(98)) == ("lios", "lios")


def test_without_turns_in_common_the_simpler_one_wins_within_a_percent() -> None:
    assert chosen(ran(100.4), ran(100), ran(101), ran(100)) == ("sequential", "sequential")
    assert chosen(ran(100), ran(90), ran(90.5), ran(120))[0] == "greedy", (
        "no event is simpler than one"
    )
    assert chosen(ran(100), ran(98.5), ran(102), ran(102))[0] == "lios"


def test_an_advantage_in_nearly_every_turn_wins_though_turns_differ_more() -> None:
    ahead = [turn * 0.97 for turn in TURNS_US]
    ahead[3] *= 1.5  # something interfered
    behind = took(*[turn * 1.1 for turn in TURNS_US])

    assert chosen(took(*TURNS_US), took(*ahead), behind, behind)[0] == "lios"


@pytest.mark.parametrize(
    "factors",
    [
        pytest.param([0.96, 1.03] * 6, id="as often ahead as behind"),
        pytest.param([0.98, 0.98, 1.01] * 4, id="ahead in two of three turns"),
        pytest.param([0.997] * 12, id="always ahead, by what nobody sees"),
    ],
)
def test_a_draw_keeps_the_simpler_plan(factors: list[float]) -> None:
    draw = took(*[turn * factor for turn, factor in zip(TURNS_US, factors, strict=True)])

    assert chosen(took(*TURNS_US), draw, draw, draw) == ("sequential", "sequential")


def test_onnxruntime_must_beat_the_best_plan_of_our_own_without_doubt() -> None:
    ours = took(*[turn * 0.9 for turn in TURNS_US])
    level = took(
        *[turn * 0.9 * factor for turn, factor in zip(TURNS_US, [0.99, 1.01] * 6, strict=True)]
    )
    better = took(*[turn * 0.87 for turn in TURNS_US])

    assert chosen(took(*TURNS_US), ours, ran(130, runs=8), level) == ("lios", "lios")
    assert chosen(took(*TURNS_US), ours, ran(130, runs=8), better) == ("onnxruntime", "lios")


def test_of_two_runtimes_the_faster_one_serves() -> None:
    planned = [Planned("lios", JOINED, ())]
    field = ComparedPlans.of(planned, 3, [ONNXRUNTIME, OPENVINO])

    for onnxruntime, openvino, best in ((80, 85, ONNXRUNTIME), (85, 80, OPENVINO)):
        measured = [ran(100), ran(90), ran(onnxruntime), ran(openvino)]
        choice = choose_plan(field, measured, 1e-4, choose=True)

        assert choice.contenders[choice.chosen].name == best
        assert choice.contenders[choice.fallback].name == "lios"


def doubted(*range_us: float, runs: int = 9, error: float = 0.0) -> PlanMeasurement:
    middle_us = median(range_us)
    return PlanMeasurement(middle_us, 0.5, runs, (), error, error, doubt="busy", range_us=range_us)


def test_in_doubt_the_best_of_those_faster_in_every_run_serves() -> None:
    sequential, no_less = doubted(60, 200), doubted(6, 60)
    half, best = doubted(20, 59), doubted(6, 30)

    assert chosen(sequential, no_less, half, best) == ("onnxruntime", "greedy")
    assert chosen(sequential, half, best, no_less) == ("greedy", "greedy")
    assert chosen(sequential, no_less, no_less, best) == ("onnxruntime", "sequential")
    assert chosen(sequential, no_less, no_less, no_less) == ("sequential", "sequential")
    assert chosen(sequential, doubted(6, 9, runs=2), half, best)[1] == "greedy", "by chance"
    assert chosen(doubted(60, 60, runs=2), half, half, best)[0] == "sequential"
    assert chosen(sequential, half, half, doubted(6, 9, error=0.3))[0] == "lios"
    failed = PlanMeasurement(None, problem="no file", doubt="busy")
    assert chosen(sequential, failed, half, failed)[0] == "greedy"


def test_in_doubt_one_planner_alone_serves_if_it_is_faster_in_every_run() -> None:
    field = ComparedPlans.of([Planned("lios", JOINED, ())], 3)

    faster = choose_plan(field, [doubted(60, 90), doubted(20, 59)], 1e-4, choose=False)
    unknown = choose_plan(field, [doubted(60, 90), doubted(20, 61)], 1e-4, choose=False)
    wrong = choose_plan(field, [doubted(60, 90), doubted(2, 3, error=0.3)], 1e-4, choose=False)

    assert (faster.chosen, faster.reason, faster.doubt) == (1, "", "busy")
    assert "nothing is decided yet, busy" in unknown.reason
    assert "is allowed" in wrong.reason


def test_in_doubt_a_narrower_precision_serves_if_it_is_faster_in_every_run_and_right() -> None:
    plans = ComparedPlans.of([], 3, [ONNXRUNTIME])
    slow, fast = doubted(60, 90), doubted(6, 9)
    wrong = doubted(2, 3, error=0.3)

    def precision(*measured: PlanMeasurement) -> tuple[int, int, int]:
        choice = choose_precision([plans, plans], measured, [1e-4, 1e-2])
        assert choice.choice.doubt == "busy"
        return choice.precision, choice.choice.chosen, choice.plan

    assert precision(slow, slow, slow, fast) == (1, 3, 0)
    assert precision(slow, slow, fast, slow) == (1, 2, 0)
    assert precision(slow, fast, wrong, wrong) == (0, 1, 0)
    assert precision(slow, slow, wrong, fast) == (0, 0, 0), "its plan runs if the runtime cannot"


def test_never_slower_than_sequential() -> None:
    assert chosen(ran(100), ran(120), ran(130), ran(140)) == ("sequential", "sequential")


@pytest.mark.parametrize("error", [0.3, math.inf, math.nan])
def test_who_is_wrong_never_serves(error: float) -> None:
    wrong = PlanMeasurement(None, None, 0, (), error, error)

    choice = choose_plan(FIELD, [ran(100), wrong, wrong, wrong], 1e-4, choose=True)

    assert choice.chosen == 0
    assert [contender.erred for contender in choice.contenders] == [False, True, True, True]
    assert "is allowed" in choice.contenders[1].remark


def test_who_was_given_up_early_does_not_win_by_few_runs() -> None:
    assert chosen(ran(100), ran(90, runs=2), ran(95), ran(99))[0] == "greedy"


def test_who_cannot_run_is_listed_with_its_reason() -> None:
    choice = choose_plan(
        FIELD,
        [ran(100), ran(90), ran(95), PlanMeasurement(None, problem="no file")],
        1e-4,
        choose=True,
    )

    last = choice.contenders[-1]
    assert (last.name, last.latency_us, last.remark, last.erred) == (
        ("onnxruntime", None, "no file", False)
    )


def test_equal_plans_take_part_once_under_all_their_names() -> None:
    planned = [Planned("lios", SEQUENTIAL, (), also=("opara",))]

    field = ComparedPlans.of(planned, 3)
    choice = choose_plan(field, [ran(100)], 1e-4, choose=False)

    assert field.plans == [SEQUENTIAL]
    assert choice.contenders[0].also == ("lios", "opara")
    assert (choice.chosen, choice.reason) == (0, "")


def test_one_planner_alone_serves_only_if_it_is_faster_without_doubt() -> None:
    field = ComparedPlans.of([Planned("lios", JOINED, ())], 3)

    faster = choose_plan(field, [ran(100), ran(90)], 1e-4, choose=False)
    slower = choose_plan(field, [ran(100), ran(103)], 1e-4, choose=False)
    few = choose_plan(field, [ran(100, runs=4), ran(90, runs=4)], 1e-4, choose=False)

    assert (faster.chosen, faster.reason) == (1, "")
    assert slower.chosen == 1
    assert "not faster without doubt, its speed-up over sequential is 0.971x" in slower.reason
    assert "its speed-up over sequential is not known" in few.reason, "four turns prove nothing"


#   launches of three units, of which the last two are independent
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(StreamPlan((Launch(0, 0), Launch(2, 0), Launch(1, 0)), 1), id="permuted"),
        pytest.param(StreamPlan((Launch(0, 0), Launch(1, 0), Launch(2, 0)), 3), id="idle streams"),
        pytest.param(
            StreamPlan((Launch(0, 0), Launch(1, 1, (0,)), Launch(2, 0, (1,))), 2), id="events"
        ),
        pytest.param(StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 0)), 2, (1, 2)), id="joins"),
    ],
)
def test_a_plan_that_is_sequential_in_effect_is_sequential_and_named_so(plan: StreamPlan) -> None:
    field = ComparedPlans.of([Planned("lios", plan, ())], 3)

    assert field.plans == [SEQUENTIAL]
    choice = choose_plan(field, [ran(100)], 1e-4, choose=False)
    assert (choice.contenders[0].name, choice.contenders[0].also) == ("sequential", ("lios",))
    assert (choice.chosen, choice.reason) == (0, "")


def test_a_plan_with_one_merged_kernel_is_not_sequential() -> None:
    merged = StreamPlan((Launch(0, 0), Launch(1, 0), Launch(2, 0)), 1, merges=((1, 2),))

    assert ComparedPlans.of([Planned("ios", merged, ())], 3).plans[1] == merged


@pytest.mark.parametrize("choose", [True, False])
def test_a_precision_that_errs_too_much_is_refused_as_a_whole(choose: bool) -> None:
    measurements = [ran(100, error=0.03), ran(90, error=0.03), ran(80, error=0.009), ran(70)]

    choice = choose_plan(FIELD, measurements, 1e-2, choose=choose, precision="fp16")

    assert choice.reason.startswith("the sequential plan in FP32 goes on serving: in fp16 outputs")
    assert "--accept-error" in choice.reason
    accepted = choose_plan(FIELD, measurements, 5e-2, choose=choose, precision="fp16")
    assert not accepted.reason


def test_a_slow_plan_of_one_planner_gives_way_to_its_precisions_sequential_plan() -> None:
    field = ComparedPlans.of([Planned("greedy", PARALLEL, ())], 3)
    slow = [ran(100), ran(120)]

    narrow = choose_plan(field, slow, 1e-2, choose=False, precision="fp16")
    plain = choose_plan(field, slow, 1e-4, choose=False)

    assert (narrow.chosen, narrow.reason) == (0, "")
    assert (plain.chosen, plain.reason[:35]) == (1, "the sequential plan goes on serving")


def test_where_the_sequential_plan_errs_too_much_others_may_err_as_much() -> None:
    measured = [ran(100, error=0.2), ran(90, error=0.15), ran(80, error=0.21), ran(70, error=0.2)]

    choice = choose_plan(FIELD, measured, 1e-4, choose=True)

    assert choice.contenders[choice.chosen].name == ONNXRUNTIME
    first, lios, greedy, onnxruntime = (each.remark for each in choice.contenders)
    assert "0.2 of the largest element, 0.0001 is allowed" in first
    assert "candidates that err no more may serve" in first
    assert "0.21 of the largest element, 0.2 is allowed" in greedy
    assert (lios, onnxruntime) == ("", "")


def test_a_plan_that_errs_too_much_gives_way_to_one_that_does_not_even_if_that_is_slower() -> None:
    measured = [ran(100, error=0.2), ran(90, error=0.15), ran(80, error=0.21), ran(130)]

    choice = choose_plan(FIELD, measured, 1e-4, choose=True)

    assert choice.contenders[choice.chosen].name == ONNXRUNTIME
    assert choice.contenders[choice.fallback].name == "sequential"


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_no_error_without_bounds_excuses_others(error: float) -> None:
    measured = [ran(100, error=error), ran(90, error=0.5), ran(80), ran(70, error=math.inf)]

    choice = choose_plan(FIELD, measured, 1e-4, choose=True)

    assert choice.contenders[choice.chosen].name == "greedy"
