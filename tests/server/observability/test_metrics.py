import re
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from braid.compiler.options import ModelOptions
from braid.core.plan import sequential_plan
from braid.core.schedule import Contender, Provenance, Schedule, ScheduleKey
from braid.server.observability.metrics import Metrics
from braid.server.observability.series.requests import SECONDS, Duration
from braid.server.store.records import ModelVersion

LENET = ModelVersion("lenet", 1, "ab" * 32, 10, ModelOptions())
SCHEDULE = Schedule(
    ScheduleKey(LENET.sha256, "cpu", 4),
    "ios",
    sequential_plan(1),
    (),
    ("a",),
    Provenance(
        measured_us=50.0,
        sequential_us=100.0,
        spread=0.03,
        candidates=(
            Contender("sequential", 100.0, 0.02),
            Contender("ios", 50.0, 0.03, speedup=1.98, speedup_least=1.9, speedup_most=2.05),
            Contender("lios"),
        ),
    ),
)


def exposed(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_a_registered_model_has_its_own_series() -> None:
    metrics = Metrics()
    metrics.add_model("lenet", 2)

    series = metrics.find_model("lenet", "2")
    series.request_ended("OK", 0.02)
    for device, waiting in (("cpu", 7), ("cuda:0", 2)):
        replica = series.on(device)
        replica.request_computed(0.001, 0.01)
        replica.batch_ran(batch_size=4, rows=3, compute_us=500)
        replica.queue_is(requests=waiting, rows=waiting)

    text = exposed(metrics)
    assert 'braid_requests_total{model="lenet",outcome="OK",version="2"} 1.0' in text
    assert 'braid_request_queue_seconds_sum{device="cpu",model="lenet",version="2"} 0.001' in text
    assert 'braid_request_compute_seconds_sum{device="cpu",model="lenet",version="2"} 0.01' in text
    assert 'braid_batch_rows_sum{device="cpu",model="lenet",version="2"} 3.0' in text
    assert 'braid_queue_depth_rows{device="cpu",model="lenet",version="2"} 7.0' in text
    assert series.waiting_requests == 9
    assert series.statistics.by_batch_size[4].count == 2


def test_histograms_are_those_of_the_client_of_prometheus() -> None:
    metrics, expected = Metrics(), CollectorRegistry()
    name, labels = "braid_request_duration_seconds", ("model", "version")
    histogram = Histogram(name, "-", labels, registry=expected, buckets=SECONDS).labels("a", "1")
    series = metrics.add_model("a", 1)

    for seconds in (0.0, *SECONDS, *(1.01 * bound for bound in SECONDS), 1e9):
        histogram.observe(seconds)
        series.request_ended("OK", seconds)

    wanted = [each for each in generate_latest(expected).decode().splitlines() if 'l="a"' in each]
    assert len(wanted) == len(SECONDS) + 3
    assert [each for each in exposed(metrics).splitlines() if each.startswith(name)][-18:] == wanted


def test_statistics_are_the_sums_over_devices_and_outcomes() -> None:
    series = Metrics().add_model("a", 1)
    for outcome, seconds in (("OK", 0.5), ("INTERNAL", 0.25), ("OK", 1.0)):
        series.request_ended(outcome, seconds)
    for device in ("cpu", "cuda:0"):
        series.on(device).request_computed(0.125, 0.25, prepare_seconds=0.5)
        series.on(device).request_computed(0.125, 0.25)
        series.on(device).batch_ran(batch_size=4, rows=3, compute_us=500)

    found = series.statistics

    assert (found.success, found.fail) == (Duration(2, 1_500_000_000), Duration(1, 250_000_000))
    assert (found.queue, found.prepare) == (Duration(4, 500_000_000), Duration(2, 1_000_000_000))
    assert found.compute == Duration(4, 1_000_000_000)
    assert (found.rows, found.batches) == (6, 2)
    assert found.by_batch_size == {4: Duration(2, 1_000_000)}


def test_a_model_that_is_loaded_and_never_asked_has_few_series() -> None:
    metrics = Metrics()
    before = len(exposed(metrics).splitlines())

    metrics.add_model("lenet", 2).on("cpu")

    text = exposed(metrics)
    assert 'braid_queue_depth_requests{device="cpu",model="lenet",version="2"} 0.0' in text
    assert len(text.splitlines()) - before < 25


def test_a_deleted_model_leaves_nothing_behind_not_even_through_late_requests() -> None:
    metrics = Metrics()
    series = metrics.add_model("lenet", 1)
    series.on("cpu")
    kept = metrics.add_model("lenet", 2)
    for each in (series, kept):
        each.request_ended("OK", 0.02)
    metrics.schedules.schedule_chosen(LENET, "cpu", SCHEDULE)
    assert 'braid_schedule_speedup_ratio{batch_size="4",device="cpu",model="lenet"' in exposed(
        metrics
    )

    metrics.remove_model("lenet", 1)
    for outcome in ("OK", "CANCELLED"):  # the first with this outcome
        series.request_ended(outcome, 0.02)
    for device in ("cpu", "cuda:0"):
        series.on(device).batch_ran(batch_size=1, rows=1, compute_us=5)
    metrics.find_model("lenet", 1).request_ended("NOT_FOUND", 0.02)
    metrics.schedules.schedule_chosen(LENET, "cpu", SCHEDULE)

    text = exposed(metrics)
    assert 'model="lenet",version="1"' not in re.sub(r'outcome="\w+",', "", text)
    assert 'model="lenet",outcome="OK",version="2"} 1.0' in text
    assert 'device="cpu",model="lenet"' not in text


def test_jobs_measurements_cache_and_restarts_are_counted() -> None:
    metrics = Metrics()
    metrics.jobs.add_device("cpu")

    metrics.jobs.jobs_counted({"READY": 2, "QUEUED": 0})
    metrics.jobs.stage_measured("cpu", 0.5)
    metrics.jobs.stages_reused("cpu", 10)
    metrics.jobs.schedule_looked_up(hit=True)

    text = exposed(metrics)
    assert 'braid_jobs{state="READY"} 2.0' in text
    assert 'braid_stage_measurements_total{device="cpu"} 1.0' in text
    assert 'braid_stage_measurement_seconds_total{device="cpu"} 0.5' in text
    assert 'braid_stage_measurements_reused_total{device="cpu"} 10.0' in text
    assert 'braid_schedule_cache_lookups_total{result="hit"} 1.0' in text
    assert 'braid_schedule_cache_lookups_total{result="miss"} 0.0' in text
    assert 'braid_worker_restarts_total{device="cpu",reason="device_lost"} 0.0' in text


def test_every_metric_of_ours_is_prefixed_and_documented() -> None:
    families = list(Metrics().registry.collect())

    assert families
    assert all(family.documentation for family in families)
    assert all(re.match(r"braid_|process_|python_", family.name) for family in families)


def test_nothing_is_left_of_an_earlier_schedule_of_the_same_batch_size() -> None:
    metrics = Metrics()
    metrics.add_model("lenet", 1)
    bare = Provenance(measured_us=70.0, candidates=(Contender("opara", 70.0),))

    metrics.schedules.schedule_chosen(LENET, "cpu", SCHEDULE)
    assert re.search(r"^braid_schedule_speedup_ratio\{.*\} 1\.98$", exposed(metrics), re.MULTILINE)
    metrics.schedules.schedule_chosen(LENET, "cpu", replace(SCHEDULE, provenance=bare))

    text = exposed(metrics)
    assert "braid_schedule_speedup_ratio{" not in text
    assert "spread_ratio{" not in text
    assert "braid_schedule_sequential_latency_seconds{" not in text
    assert re.findall(r'planner="(\w+)"', text) == ["opara"]


def test_every_candidate_that_was_measured_has_its_latency() -> None:
    metrics = Metrics()
    metrics.add_model("lenet", 1)

    metrics.schedules.schedule_chosen(LENET, "cpu", SCHEDULE)

    *_, family = metrics.schedules.collect()
    found = {each.labels["planner"]: each.value for each in family.samples}
    assert found == pytest.approx({"sequential": 100e-6, "ios": 50e-6})


def test_counters_and_histograms_have_no_second_series_for_when_they_were_made() -> None:
    metrics = Metrics()
    metrics.add_model("lenet", 1).request_ended("OK", 0.02)
    metrics.jobs.uploads.observe(3 << 20)

    other = openmetrics.generate_latest(metrics.registry)  # type: ignore[no-untyped-call]
    for text in (exposed(metrics), other.decode()):
        assert "_created" not in text
        assert "braid_upload_bytes_sum 3.145728e+06" in text


def test_the_best_other_runtime_stands_beside_a_schedule_and_goes_with_it() -> None:
    metrics = Metrics()
    metrics.add_model("lenet", 1)
    others = (Contender("onnxruntime", 65.0), Contender("openvino", 70.0))
    candidates = (*SCHEDULE.provenance.candidates, *others)
    beside = replace(SCHEDULE.provenance, candidates=candidates)

    metrics.schedules.schedule_chosen(LENET, "cpu", replace(SCHEDULE, provenance=beside))
    assert re.search(
        r"^braid_schedule_best_other_ratio\{.*\} 1\.3$", exposed(metrics), re.MULTILINE
    )

    metrics.schedules.schedule_chosen(LENET, "cpu", SCHEDULE)
    assert "braid_schedule_best_other_ratio{" not in exposed(metrics)
