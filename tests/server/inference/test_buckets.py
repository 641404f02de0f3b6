import random

import pytest

from braid.core.inputs import ShapeClass
from braid.core.padding import BY_REQUEST, MASK, PaddedAxis, PaddedInput
from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import SEQUENTIAL, Contender, Provenance, Schedule, ScheduleKey
from braid.core.scheduled_lengths import LengthCosts
from braid.core.tensor import TensorType
from braid.server.inference.lengths import PROBE, Lengths, elements_of
from braid.server.inference.requests import CheckedRequest
from braid.server.inference.shape_latencies import ShapeTimes, bin_of

AXIS = PaddedAxis("length", True, {"mask": PaddedInput(1, MASK)}, {}, 256, 0.0, BY_REQUEST, "")


def asked(length: int, first: int = 1, width: int = 4, *, is_empty: bool = False) -> CheckedRequest:
    """A request with a mask, which begins with ``first``, and another input."""
    mask, x = TensorType("INT64", (1, length)), TensorType("FP32", (1, width))
    ones = b"".join(value.to_bytes(8, "little") for value in [first, *[1] * (length - 1)])
    inputs = {"mask": ones, "x": bytes(4 * width)}
    shape_class = ShapeClass((("mask", mask), ("x", x)))
    return CheckedRequest(shape_class, 1, inputs, (), is_empty=is_empty)


def schedule(plan_us: float, session_us: float | None) -> Schedule:
    """A schedule whose plan and session took so long in one comparison."""
    ran = [] if session_us is None else [Contender(ONNXRUNTIME, latency_us=session_us)]
    compared = Provenance(plan_us, plan_us, promoted=True, candidates=tuple(ran))
    return Schedule(
        ScheduleKey("m", "cpu", 1), SEQUENTIAL, sequential_plan(1), (), ("u",), compared
    )


def buckets(*plans: tuple[int, float, float | None], times: ShapeTimes | None = None) -> Lengths:
    """Scheduled lengths, with what plan and session take there.

    ``times``: of what ran unpadded.
    """
    made = Lengths(AXIS, asked(256).shape_class, times or ShapeTimes())
    for length, plan_us, session_us in plans:
        made.schedule_serves(asked(length).shape_class, schedule(plan_us, session_us))
    return made


def bucket_of(among: Lengths, request: CheckedRequest, *, has_session: bool = True) -> int | None:
    bucket = among.scheduled_for(request, has_session=has_session)
    return None if bucket is None else int(dict(bucket.inputs)["mask"].shape[1])


def test_a_request_is_padded_to_the_next_length_where_its_plan_takes_less() -> None:
    among = buckets((32, 160, 320), (64, 320, 640))  # half of the session's, 10 us a word

    padded = {length: bucket_of(among, asked(length)) for length in (8, 17, 31, 33, 63, 65)}

    assert padded == {8: None, 17: 32, 31: 32, 33: 64, 63: 64, 65: None}


def test_nothing_is_padded_where_plans_are_no_faster_than_the_session() -> None:
    among = buckets((32, 320, 320), (64, 700, 640))

    assert {bucket_of(among, asked(length)) for length in range(1, 256)} == {None}


def test_what_runs_unpadded_takes_decides_once_it_was_seen() -> None:
    times = ShapeTimes()
    among = buckets((64, 600, 640), times=times)
    assert bucket_of(among, asked(40)) is None

    for length in (39, 63):  # flat: the session takes as long for short ones
        times.observe(elements_of(asked(length).shape_class), 0.7e-3)

    assert bucket_of(among, asked(40)) == 64


def test_without_a_figure_of_the_session_nothing_is_padded() -> None:
    assert bucket_of(buckets((64, 1, None)), asked(63)) is None


def test_without_a_session_a_request_is_padded_rather_than_prepared() -> None:
    among = buckets((64, 600, None))

    padded = [bucket_of(among, asked(n), has_session=False) for n in (31, 32, 63)]
    assert padded == [None, 64, 64]


@pytest.mark.parametrize(
    "wanted",
    [
        asked(64),  # it has the length
        asked(60, first=0),  # attention would spread over the padding
        asked(60, width=5),  # another extent differs, too
        asked(60, is_empty=True),
        asked(300),  # longer than what padding was looked at
    ],
)
def test_a_request_that_cannot_be_padded_is_not(wanted: CheckedRequest) -> None:
    assert bucket_of(buckets((64, 1, 1000), (256, 2, 2000)), wanted) is None


def test_now_and_then_one_runs_unpadded_so_that_what_it_takes_stays_known() -> None:
    among = buckets((64, 1, 1000))

    padded = [bucket_of(among, asked(60)) for _ in range(10 * PROBE)]

    assert padded.count(None) == 10


def test_costs_between_measured_lengths_lie_between_them() -> None:
    drawn = random.Random(1)
    for _ in range(200):
        costs, count = LengthCosts(), drawn.randrange(1, 6)
        lengths = sorted(drawn.sample(range(1, 500), count))
        points = dict(zip(lengths, sorted(drawn.uniform(1, 9) for _ in lengths), strict=True))
        for length, session_us in points.items():
            costs.compared(length, schedule(session_us / 2, session_us))
        assert all(costs.is_cheaper(length, length) for length in points)
        for length in range(1, 600):
            seconds = costs.unpadded_s(length)
            assert seconds is not None
            assert seconds > 0
            below = max((n for n in points if n <= length), default=None)
            above = min((n for n in points if n >= length), default=None)
            if below and above:
                ends = sorted((points[below] * 1e-6, points[above] * 1e-6))
                assert ends[0] * 0.999 <= seconds <= ends[1] * 1.001


def test_noise_never_makes_a_plan_that_is_no_faster_take_padded_requests() -> None:
    drawn = random.Random(2)
    for _ in range(50):
        times = ShapeTimes()
        among = buckets((64, 640, 640), (200, 2000, 2000), times=times)
        for _ in range(100):
            length = drawn.randrange(1, 200)
            elements = elements_of(asked(length).shape_class)
            times.observe(elements, length * drawn.uniform(0.2, 3))
        costs = [among.costs.unpadded_s(length) or 0.0 for length in range(1, 260)]

        assert {bucket_of(among, asked(length)) for length in range(1, 200)} == {None}
        assert costs == pytest.approx(sorted(costs))


def test_costs_are_the_nearest_that_rise() -> None:
    times = ShapeTimes()
    costs = LengthCosts(times.compared_s)
    for length, seconds in ((1, 1.0), (2, 5.0), (3, 3.0), (4, 4.0), (5, 9.0), (6, 8.0)):
        times.observe(length, seconds)

    assert [costs.unpadded_s(length) for length in range(1, 7)] == [1.0, 4.0, 4.0, 4.0, 8.5, 8.5]


def test_bins_are_few_and_hardly_longer_than_their_lengths() -> None:
    bins = [bin_of(length) for length in range(1, 100_000)]

    assert len({*bins}) < 250
    assert all(n <= at <= n * 17 / 16 + 1 for n, at in enumerate(bins, 1))
    assert bins == sorted(bins)
