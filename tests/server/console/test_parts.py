from time import perf_counter
from xml.etree import ElementTree

import pytest

from braid.server.console import sessions as sessions_module
from braid.server.console.graphs import latency_svg, lengths_svg
from braid.server.console.rates import ALL, MOST_POINTS, POINT_SECONDS, Point, Rates, quantile
from braid.server.console.sessions import MAX_PEERS, Sessions, SignInLimit
from braid.server.observability.metrics import Metrics


def test_sessions_end_by_themselves_or_when_somebody_signs_out() -> None:
    now = 0.0
    sessions = Sessions(lambda token: True, lambda: now)
    first, second = (
        {"cookie": f"{sessions_module.COOKIE}={sessions.sign_in('x')}"} for _ in range(2)
    )
    now = sessions_module.SESSION_SECONDS - 1
    assert sessions.is_signed_in(first)
    sessions.sign_out(first)
    assert not sessions.is_signed_in(first)
    assert sessions.is_signed_in(second)
    now += 1
    assert not sessions.is_signed_in(second)


def test_a_session_is_found_among_other_cookies_however_hostile_they_are() -> None:
    sessions = Sessions(lambda token: True)
    name, hostile = sessions.sign_in("x"), 'a="' + "\\" * 15_900 + '"'
    ours = f"{sessions_module.COOKIE}={name}"

    began = perf_counter()
    for cookie in (ours, f"{hostile}; {ours}", f"b=c;{ours} ; {hostile}", f'd="e"; {ours}'):
        assert sessions.is_signed_in({"cookie": cookie})
    for cookie in ("", "=", ";;", hostile, f"x{ours}", f"{ours}x", f"a={ours}"):
        assert not sessions.is_signed_in({"cookie": cookie})
    assert perf_counter() - began < 1  # http.cookies took 1.4 s for each that is hostile


def test_sign_in_is_limited_by_address_and_time() -> None:
    now = 100.0
    limit = SignInLimit(lambda: now)

    assert [limit.failed("10.0.0.1") for _ in range(5)] == [False] * 4 + [True]
    assert limit.wait_seconds("10.0.0.1") == 60.0
    assert limit.wait_seconds("10.0.0.2") == 0.0
    now += 61.0
    assert limit.wait_seconds("10.0.0.1") == 0.0
    for host in range(5):
        limit.failed(f"2001:db8::{host}")
    assert limit.wait_seconds("2001:db8::ffff") > 0.0, "one network of one caller"
    for number in range(2 * MAX_PEERS):
        limit.failed(f"peer {number}")
    assert limit.wait_seconds("2001:db8::ffff") == 0.0, "what is remembered is bounded"


def test_rates_are_those_since_the_look_before() -> None:
    now = 0.0
    metrics = Metrics()
    series = metrics.add_model("lenet", 1)
    for _ in range(1000):
        series.request_ended("OK", 5.0)
    rates = Rates(metrics.requests, lambda: now)
    assert rates.look() == {}, "nothing to compare with yet"

    now = 10.0
    for _ in range(30):
        series.request_ended("OK", 0.002)
    for _ in range(10):
        series.request_ended("INTERNAL", 0.002)
    found = rates.look()["lenet", "1"]

    assert found.requests_per_s == pytest.approx(4.0)
    assert found.failures_per_s == pytest.approx(1.0)
    assert found.p50_s == pytest.approx(0.00175)
    assert found.p99_s is not None
    assert found.p99_s < 0.0025


def test_views_within_a_second_share_one_look() -> None:
    now = 0.0
    metrics = Metrics()
    series = metrics.add_model("lenet", 1)
    rates = Rates(metrics.requests, lambda: now)
    rates.look()
    now = 2.0
    series.request_ended("OK", 0.002)
    first = rates.look()
    series.request_ended("OK", 0.002)
    now = 2.9
    assert rates.look() is first
    now = 3.0
    assert rates.look()["lenet", "1"].requests_per_s == pytest.approx(2 / 3)


def test_points_of_ten_minutes_are_kept_of_what_is_asked() -> None:
    now = 0.0
    metrics = Metrics()
    busy, idle = metrics.add_model("busy", 1), metrics.add_model("idle", 1)
    idle.request_ended("OK", 0.002)
    rates = Rates(metrics.requests, lambda: now)
    for _ in range(2 * MOST_POINTS):
        now += POINT_SECONDS
        busy.request_ended("OK", 0.002)
        rates.keep()

    points = rates.points(("busy", "1"))
    assert len(points) == MOST_POINTS
    assert (points[-1].age_s, points[0].age_s) == (0.0, (MOST_POINTS - 1) * POINT_SECONDS)
    assert 0.001 < points[-1].p50_s < points[-1].p99_s <= 0.0025
    assert rates.points(ALL) == points
    assert rates.points(("idle", "1")) == [], "nobody asked since the server's start"
    now += MOST_POINTS * POINT_SECONDS + 1
    assert rates.points(("busy", "1")) == []
    metrics.remove_model("busy", 1)
    rates.keep()
    metrics.add_model("busy", 1)
    assert rates.points(("busy", "1")) == []


def test_small_pictures_say_what_they_show_and_hold_no_markup_of_others() -> None:
    assert latency_svg([]) == ""
    drawn = ElementTree.fromstring(
        latency_svg([Point(60.0, 0.001, 0.004), Point(0.0, 0.002, 0.003)])
    )
    assert drawn.attrib["aria-label"] == (
        "Latency of the last ten minutes: p50 2.00 ms, p99 3.00 ms at last, p99 at most 4.00 ms"
    )
    lines = {each.attrib["class"]: each.attrib["points"] for each in drawn.iter("polyline")}
    assert lines["p99"].split()[0] == "360,18", "a tenth from the right, the greatest on top"
    texts = ["".join(each.itertext()) for each in drawn.iter("text")]
    assert texts[:3] == ["0 ms", "2 ms", "4 ms"]
    assert "last: ● p50 2.00 ms, ● p99 3.00 ms" in texts

    bars = ElementTree.fromstring(lengths_svg('<b a="">', {5: 10, 9: 20}, [16]))
    assert "along <b" in bars.attrib["aria-label"]
    assert [each.text for each in bars.iter("title")] == [
        *("up to 5: 10 rows", "up to 9: 20 rows", "up to 16: 0 rows, scheduled")
    ]
    heights = [float(each.attrib["height"]) for each in bars.iter("rect")]
    assert heights[1] == 2 * heights[0] > heights[2] > 0


def test_quantiles_are_interpolated_as_prometheus_does() -> None:
    buckets = [(0.1, 10.0), (0.2, 30.0), (float("inf"), 40.0)]
    assert quantile(0.5, buckets) == pytest.approx(0.15)
    assert quantile(0.99, buckets) == 0.2
    assert quantile(0.5, [(0.1, 0.0), (float("inf"), 0.0)]) is None


def test_over_tls_the_cookie_is_sent_over_tls_only() -> None:
    assert sessions_module.set_cookie("x", secure=True)[1].endswith("; Secure")
    assert "Secure" not in sessions_module.set_cookie("x", secure=False)[1]
