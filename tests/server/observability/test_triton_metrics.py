from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from braid.server.observability.metrics import Metrics, TritonMetrics


def test_triton_names_carry_what_braid_counted() -> None:
    metrics = Metrics()
    metrics.registry.register(TritonMetrics(metrics))
    series = metrics.add_model("lenet", 2)
    series.request_ended("OK", 0.02)
    series.request_ended("OK", 0.04)
    series.request_ended("INVALID_ARGUMENT", 0.01)
    series.on("cpu").request_computed(0.001, 0.01)
    series.on("cpu").batch_ran(4, 3, 10_000)
    series.on("cpu").queue_is(requests=5, rows=7)

    text = generate_latest(metrics.registry).decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("nv_") and sample.labels == {"model": "lenet", "version": "2"}
    }
    assert found == {
        "nv_inference_request_success": 2,
        "nv_inference_request_failure": 1,
        "nv_inference_count": 3,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 60_000,
        "nv_inference_queue_duration_us": 1_000,
        "nv_inference_compute_input_duration_us": 0,
        "nv_inference_compute_infer_duration_us": 10_000,
        "nv_inference_compute_output_duration_us": 0,
        "nv_inference_pending_request_count": 5,
    }
