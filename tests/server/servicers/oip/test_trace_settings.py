import pytest
from tritonclient.grpc import service_pb2

from braid.core.errors import BraidError, InvalidRequest, NotOffered, PreconditionFailed
from braid.server.observability.tracing import Sampling
from braid.server.servicers.oip.settings import TraceSettings


def update(settings: TraceSettings, **wanted: str | None) -> None:
    request = service_pb2.TraceSettingRequest()
    for name, value in wanted.items():
        request.settings[name].value.extend([] if value is None else [value])
    settings.update(request.settings)


def test_a_rate_and_a_count_pick_requests_until_tracing_is_off() -> None:
    sampling = Sampling()
    settings = TraceSettings(sampling)
    assert all(sampling.takes_next() for _ in range(3))

    update(settings, trace_rate="3", trace_count="2")
    assert [sampling.takes_next() for _ in range(9)] == 2 * [False, False, True] + 3 * [False]
    update(settings, trace_rate=None, trace_count=None)
    assert all(sampling.takes_next() for _ in range(3))
    update(settings, trace_level="OFF")
    assert not sampling.takes_next()

    now = {name: list(each.value) for name, each in settings.response().settings.items()}
    assert now == {
        "trace_level": ["OFF"],
        "trace_rate": ["1"],
        "trace_count": ["-1"],
        "trace_mode": ["opentelemetry"],
    }


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("trace_rate", "0", InvalidRequest),
        ("trace_rate", "often", InvalidRequest),
        ("trace_count", "-2", InvalidRequest),
        ("trace_file", "/etc/passwd", InvalidRequest),
        ("trace_level", "TENSORS", NotOffered),
        ("trace_mode", "triton", NotOffered),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    name: str, value: str, error: type[BraidError]
) -> None:
    sampling = Sampling()

    with pytest.raises(error):
        update(TraceSettings(sampling), **{name: value})

    assert sampling == Sampling()


def test_a_server_that_does_not_trace_says_so() -> None:
    settings = TraceSettings(None)

    update(settings, trace_level="OFF")
    with pytest.raises(PreconditionFailed, match="BRAID_TRACING"):
        update(settings, trace_level="TIMESTAMPS")
