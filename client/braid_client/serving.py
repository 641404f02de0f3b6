"""Record of how a model serves, and its conversion from and to the wire."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from braid_client.wire import admin_pb2


@dataclass(frozen=True, slots=True)
class Serving:
    """Versions, labels, batching and residency of a model; None: as the server's settings say.

    Of ``latest`` and ``versions`` at most one is given; with neither, all versions serve. A
    labelled version serves in any case. Requests that name no version go to ``stable``.
    """

    latest: int | None = None  # so many of the newest versions
    versions: tuple[int, ...] = ()  # these versions
    labels: Mapping[str, int] = field(default_factory=dict)
    max_wait_ms: float | None = None  # for more rows, where it is expected to pay
    max_queue_requests: int | None = None
    max_queue_rows: int | None = None
    max_queue_ms: float | None = None  # expected wait that is refused; 0: no limit
    share: float | None = None  # of the device's time, relative to other models
    residency: str = "resident"  # or "pinned": never unloaded, or "on-demand"
    idle_s: float | None = None  # without a request, until a model on demand is unloaded
    refuses: bool = False  # requests that find it unloaded are refused, and do not wait


BATCHING = ("max_wait_ms", "max_queue_requests", "max_queue_rows", "max_queue_ms", "share")


def serving_to_wire(model: str, serving: Serving) -> admin_pb2.ServingConfig:
    return admin_pb2.ServingConfig(
        model=model,
        versions=admin_pb2.VersionPolicy(latest=serving.latest or 0, specific=serving.versions),
        labels=serving.labels,
        batching=admin_pb2.Batching(**{name: getattr(serving, name) for name in BATCHING}),
        residency=admin_pb2.Residency(
            kind=serving.residency, idle_seconds=serving.idle_s, refuses=serving.refuses
        ),
    )


def serving_from_wire(message: admin_pb2.ServingConfig) -> Serving:
    given, residency = message.batching, message.residency
    batching = {name: getattr(given, name) for name in BATCHING if given.HasField(name)}
    return Serving(
        latest=message.versions.latest or None,
        versions=tuple(message.versions.specific),
        labels=dict(message.labels),
        residency=residency.kind or "resident",
        idle_s=residency.idle_seconds if residency.HasField("idle_seconds") else None,
        refuses=residency.refuses,
        **batching,
    )
