"""Which way of running a model serves, given what each one showed."""

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


def test_an_advantage_in_nearly_every_turn_wins_though_turns_differ_more() -> None:
    ahead = [turn * 0.97 for turn in TURNS_US]
    ahead[3] *= 1.5  # something interfered
    behind = took(*[turn * 1.1 for turn in TURNS_US])

    assert chosen(took(*TURNS_US), took(*ahead), behind, behind)[0] == "lios"


def test_of_two_runtimes_the_faster_one_serves() -> None:
    planned = [Planned("lios", JOINED, ())]
    field = ComparedPlans.of(planned, 3, [ONNXRUNTIME, OPENVINO])

    for onnxruntime, openvino, best in ((80, 85, ONNXRUNTIME), (85, 80, OPENVINO)):
        measured = [ran(100), ran(90), ran(onnxruntime), ran(openvino)]
        choice = choose_plan(field, measured, 1e-4, choose=True)

        assert choice.contenders[choice.chosen].name == best
        assert choice.contenders[choice.fallback].name == "lios"


def test_never_slower_than_sequential() -> None:
    assert chosen(ran(100), ran(120), ran(130), ran(140)) == ("sequential", "sequential")


@pytest.mark.parametrize("error", [0.3, math.inf, math.nan])
def test_who_is_wrong_never_serves(error: float) -> None:
    wrong = PlanMeasurement(None, None, 0, (), error, error)

    choice = choose_plan(FIELD, [ran(100), wrong, wrong, wrong], 1e-4, choose=True)

    assert choice.chosen == 0
    assert [contender.erred for contender in choice.contenders] == [False, True, True, True]
    assert "is allowed" in choice.contenders[1].remark


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


def test_of_estimates_within_a_percent_the_simpler_one_serves() -> None:
    assert chosen(ran(100.4), ran(100), ran(101), ran(100)) == ("sequential", "sequential")
    assert chosen(ran(100), ran(90), ran(90.5), ran(120))[0] == "greedy", (
        "no event is simpler than one"
    )
    assert chosen(ran(100), ran(98.5), ran(102), ran(102))[0] == "lios"


def test_no_plan_has_a_privilege_over_a_better_estimate() -> None:
    ahead = took(
        *[turn * factor for turn, factor in zip(TURNS_US, [0.9, 1.05, 0.9] * 4, strict=True)]
    )
    level = took(*TURNS_US)

    assert chosen(level, level, level, ahead) == ("onnxruntime", "sequential")


def test_service_chooses_from_three_of_which_two_are_our_own() -> None:
    planned = [Planned("lios", JOINED, ()), Planned("greedy", PARALLEL, ())]
    field = ComparedPlans.of(planned, 3, [ONNXRUNTIME, OPENVINO])

    def names(*measured: PlanMeasurement) -> list[str]:
        choice = choose_plan(field, measured, 1e-4, choose=True)
        return [choice.contenders[at].name for at in (choice.chosen, *choice.others)]

    assert names(ran(100), ran(90), ran(95), ran(105), ran(110)) == ["lios", "greedy", ONNXRUNTIME]
    assert names(ran(100), ran(90), ran(95), ran(80), ran(82)) == [ONNXRUNTIME, OPENVINO, "lios"]
    assert names(ran(100), ran(90), ran(200), ran(200), ran(200)) == ["lios", "sequential"]
    unsteady = took(*[turn * (0.8 if turn == 120 else 3) for turn in TURNS_US])
    level, fast = took(*TURNS_US), took(*[turn * 0.5 for turn in TURNS_US])
    once_ahead = took(*[turn * (0.4 if turn == 120 else 3) for turn in TURNS_US])
    assert names(level, fast, unsteady, unsteady, unsteady) == ["lios"]
    assert names(level, fast, once_ahead, unsteady, once_ahead) == ["lios", "greedy", OPENVINO]
    far = ran(150), ran(149)
    assert names(ran(100), ran(90), ran(95), *far) == ["lios", "greedy", OPENVINO]
    assert names(ran(100), ran(150), ran(150), ran(120), ran(149)) == ["sequential", ONNXRUNTIME]
    wrong = ran(80, error=0.3)
    assert names(ran(100), ran(100.5), wrong, wrong, ran(99.5)) == ["sequential", OPENVINO, "lios"]


def test_a_narrower_precision_serves_if_it_gains_enough_and_is_right() -> None:
    plans = ComparedPlans.of([], 3, [ONNXRUNTIME])

    def precision(*measured: PlanMeasurement) -> tuple[int, int, int]:
        choice = choose_precision([plans, plans], measured, [1e-4, 1e-2])
        return choice.precision, choice.choice.chosen, choice.plan

    assert precision(ran(100), ran(100), ran(110), ran(80)) == (1, 3, 0)
    assert precision(ran(100), ran(100), ran(80), ran(110)) == (1, 2, 0)
    assert precision(ran(100), ran(90), ran(100), ran(88)) == (0, 1, 0), "it errs more"
    wrong = ran(20, error=0.3)
    assert precision(ran(100), ran(90), wrong, wrong) == (0, 1, 0)
    assert precision(ran(100), ran(110), wrong, ran(80)) == (0, 0, 0), (
        "its plan runs if the runtime cannot"
    )


def test_one_planner_alone_serves_if_its_estimate_is_better() -> None:
    field = ComparedPlans.of([Planned("lios", JOINED, ())], 3)

    faster = choose_plan(field, [ran(100), ran(90)], 1e-4, choose=False)
    slower = choose_plan(field, [ran(100), ran(103)], 1e-4, choose=False)

    assert (faster.chosen, faster.reason, faster.others) == (1, "", ())
    assert slower.chosen == 1
    assert "not faster, its speed-up over sequential is 0.971x" in slower.reason


def test_who_was_given_up_early_does_not_win_by_few_runs() -> None:
    assert chosen(ran(100), ran(90, runs=2), ran(95), ran(99))[0] == "greedy"
