"""Calls of ``braid.v1.AdminService``, uploads message by message, of health and of reflection."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from braid_client.wire import admin_pb2 as wire
from tests.attack.messages.bad_requests import MEGABYTE
from tests.attack.messages.doors import INVALID, MISSING, TOO_LARGE
from tests.attack.messages.grpc_calls import ADMIN, GrpcCall
from tests.attack.target import PREY

NAN, INFINITE = float("nan"), float("inf")
MOST = (1 << 31) - 1


def header(**fields: Any) -> wire.RegisterModelRequest:
    made = wire.RegisterModelHeader(**{"name": "hostile", **fields})
    return wire.RegisterModelRequest(header=made)


def chunk(data: bytes) -> wire.RegisterModelRequest:
    return wire.RegisterModelRequest(chunk=data)


def samples(data: bytes) -> wire.RegisterModelRequest:
    return wire.RegisterModelRequest(samples=data)


def footer(sha256: str) -> wire.RegisterModelRequest:
    return wire.RegisterModelRequest(footer=wire.RegisterModelFooter(sha256=sha256))


def planner(**fields: Any) -> wire.RegisterModelRequest:
    return header(planner=wire.PlannerOptions(**fields))


def shape(name: str, dims: Sequence[int]) -> wire.RegisterModelRequest:
    return header(input_shapes={name: wire.Shape(dims=dims)})


SCRIPT = b"#!/bin/sh\n" * 9
FILE = b"\x08\x08:\x02\x12\x00"  # as ONNX begins, and no model
SUM = hashlib.sha256(FILE).hexdigest()
SCRIPT_SUM = hashlib.sha256(SCRIPT).hexdigest()
WRONG = "f" * 64
Parts = Sequence[Message | bytes]

UPLOADS: Mapping[str, tuple[Parts, tuple[str, ...]]] = {
    "nothing": ([], ("stream is empty",)),
    "an empty message": ([b""], ("first message must be the header",)),
    "a chunk first": ([chunk(FILE)], ("first message must be the header",)),
    "samples first": ([samples(b"PK")], ("first message must be the header",)),
    "a footer first": ([footer(SUM)], ("first message must be the header",)),
    "two headers": ([header(), header()], ("only chunks and one footer",)),
    "an empty message later": ([header(), b""], ("only chunks and one footer",)),
    "noise later": ([header(), b"\xff"], ("cannot be decoded",)),
    "a header only": ([header()], ("without a footer",)),
    "no footer": ([header(), chunk(FILE)], ("without a footer",)),
    "no chunk": ([header(), footer(SUM)], ("empty",)),
    "empty chunks": ([header(), *[chunk(b"")] * 100, footer(SUM)], ("empty",)),
    "samples after a chunk": ([header(), chunk(FILE), samples(b"PK"), footer(SUM)], ("samples",)),
    "samples and no chunk": ([header(), samples(b"PK"), footer(SUM)], ("empty",)),
    "samples that are none": ([header(), samples(b"no"), chunk(FILE)], ("samples",)),
    "another digest": ([header(), chunk(FILE), footer(WRONG)], ("SHA-256", SUM)),
    "no digest": ([header(), chunk(FILE), footer("")], ("64 hexadecimal",)),
    "a short digest": ([header(), chunk(FILE), footer(SUM[:63])], ("64 hexadecimal",)),
    "a long digest": ([header(), chunk(FILE), footer(SUM * 9999)], ("64 hexadecimal",)),
    "a path for a digest": ([header(), chunk(FILE), footer("../" * 21 + "x")], ("64 hex",)),
    "a digest in other digits": ([header(), chunk(FILE), footer("\u0661" * 64)], ("64 hex",)),
    "a file that is no model": ([header(), chunk(SCRIPT), footer(SCRIPT_SUM)], ("not a model",)),
    "no name": ([header(name="")], ("model name ''",)),
    "a path for a name": ([header(name="../../etc/passwd")], ("model name",)),
    "a name with a NUL": ([header(name="a\x00")], (r"model name 'a\x00'",)),
    "a name of a megabyte": ([header(name=MEGABYTE)], ("1 to 128",)),
    "a thousand batch sizes": ([header(batch_sizes=range(1, 1001))], ("batch sizes",)),
    "an unknown planner": ([planner(name="magic")], ("no planner 'magic'",)),
    "a planner of a megabyte": ([planner(name=MEGABYTE)], ("no planner",)),
    "groups below 0": ([planner(max_groups=-1)], ("at least 1",)),
    "operators below 0": ([planner(max_group_ops=-1)], ("at least 1",)),
    "an extent below 0": ([shape("x", [-1, 3])], ("input_shapes['x']",)),
    "an extent of 2^62": ([shape("x", [1 << 62])], ("input_shapes['x']",)),
    "a shape of 100,000": ([shape("x", [1] * 100_000)], ("input_shapes['x']",)),
    "an unknown precision": ([header(precision="fp64")], ("fp64",)),
    "a precision of a megabyte": ([header(precision=MEGABYTE)], ("precision",)),
    "an error below 0": ([header(accepted_error=-1)], ("accepted error",)),
    "an error of NaN": ([header(accepted_error=NAN)], ("accepted error",)),
    "an error beyond all": ([header(accepted_error=INFINITE)], ("accepted error",)),
}
"""Messages of an upload, and words of the refusal: all are INVALID_ARGUMENT."""


def serving(**fields: Any) -> wire.ServingConfig:
    return wire.ServingConfig(**{"model": PREY, **fields})


def batching(**fields: Any) -> wire.ServingConfig:
    return serving(batching=wire.Batching(**fields))


def versions(**fields: Any) -> wire.ServingConfig:
    return serving(versions=wire.VersionPolicy(**fields))


CONFIGURATIONS: Mapping[str, tuple[wire.ServingConfig, tuple[str, ...]]] = {
    "latest -1": (versions(latest=-1), ("latest versions",)),
    "latest and specific": (versions(latest=1, specific=[1]), ("latest versions",)),
    "version 0": (versions(specific=[0]), ("by their numbers",)),
    "version -1": (versions(specific=[-1]), ("by their numbers",)),
    "too many versions": (versions(specific=range(1, 1000)), ("1 to 256",)),
    "a label without a name": (serving(labels={"": 1}), ("label ''",)),
    "a number for a label": (serving(labels={"1": 1}), ("label '1'",)),
    "markup for a label": (serving(labels={"<b>": 1}), ("label '<b>'",)),
    "a path for a label": (serving(labels={"../x": 1}), ("label '../x'",)),
    "a label of 33": (serving(labels={"a" * 33: 1}), ("1 to 32",)),
    "a label of version 0": (serving(labels={"canary": 0}), ("version 0",)),
    "a label of version -1": (serving(labels={"canary": -1}), ("version -1",)),
    "33 labels": (serving(labels={f"l{n}": 1 for n in range(33)}), ("at most 32 labels",)),
    "a wait below 0": (batching(max_wait_ms=-1), ("wait",)),
    "a wait of NaN": (batching(max_wait_ms=NAN), ("wait",)),
    "a wait without end": (batching(max_wait_ms=INFINITE), ("wait",)),
    "a share of 0": (batching(share=0), ("share",)),
    "a share of NaN": (batching(share=NAN), ("share",)),
    "a share without end": (batching(share=INFINITE), ("share",)),
    "a queue of 0": (batching(max_queue_requests=0), ("1 request",)),
    "a queue of -1 rows": (batching(max_queue_rows=-1), ("1 row",)),
    "a queue of -1 ms": (batching(max_queue_ms=-1), ("longest wait",)),
    "a queue of NaN ms": (batching(max_queue_ms=NAN), ("longest wait",)),
}
"""How a model is to serve, and words of the refusal: all are INVALID_ARGUMENT."""

NAMES: Mapping[str, tuple[str, str]] = {
    "no name": ("", "''"),
    "an unknown name": ("nobody", "'nobody'"),
    "a path": ("../../etc/passwd", "'../../etc/passwd'"),
    "a pattern": ("%", "'%'"),
    "a quote": ("' OR 1=1 --", "OR 1=1"),
    "a NUL": ("a\x00", r"'a\x00'"),
    "a megabyte": (MEGABYTE, "'mmm"),
}
"""What nothing is called, and how the refusal shows it."""


def _of_nobody() -> Iterator[tuple[str, Message, str]]:
    """Yield method, message and name of calls about what is not there."""
    for what, (name, _) in NAMES.items():
        yield "WatchJob", wire.WatchJobRequest(job_id=name), what
        yield "CancelJob", wire.CancelJobRequest(job_id=name), what
        yield "GetModel", wire.GetModelRequest(model=name), what
        yield "DeleteModel", wire.DeleteModelRequest(model=name), what
        yield "GetServing", wire.GetServingRequest(model=name), what
        yield "SetServing", wire.ServingConfig(model=name), what
        yield "GetSchedule", wire.GetScheduleRequest(model=name), what
        if name:
            yield "GetModel", wire.GetModelRequest(model=PREY, version=name), what
            yield "DeleteModel", wire.DeleteModelRequest(model=PREY, version=name), what
            yield "GetSchedule", wire.GetScheduleRequest(model=PREY, version=name), what
            yield "GetSchedule", wire.GetScheduleRequest(model=PREY, device=name), what


def uploads() -> Iterator[tuple[str, GrpcCall]]:
    for what, (parts, words) in UPLOADS.items():
        yield f"upload: {what}", GrpcCall(f"{ADMIN}RegisterModel", parts, INVALID, words)


def calls() -> Iterator[tuple[str, GrpcCall]]:
    for what, (config, words) in CONFIGURATIONS.items():
        yield f"SetServing: {what}", GrpcCall(f"{ADMIN}SetServing", [config], INVALID, words)
    for number, (method, message, what) in enumerate(_of_nobody()):
        words = (NAMES[what][1],)
        status = INVALID if method == "SetServing" and what != "an unknown name" else MISSING
        yield f"{method} {number}: {what}", GrpcCall(ADMIN + method, [message], status, words)
    for size in (-1, 3, MOST, -MOST):
        message = wire.GetScheduleRequest(model=PREY, batch_size=size)
        yield (
            f"schedule of {size}",
            GrpcCall(f"{ADMIN}GetSchedule", [message], MISSING, (str(size),)),
        )
    for limit in (-1, -MOST, MOST):
        listing = wire.ListJobsRequest(model="' OR 1=1 --", limit=limit)
        yield f"{limit} jobs of nobody", GrpcCall(f"{ADMIN}ListJobs", [listing], "OK")
    for method in ("ListModels", "ListNodes"):  # unknown fields are for later versions
        yield f"{method}: unknown fields", GrpcCall(ADMIN + method, [b"\x0a\x03abc" * 1000], "OK")
    yield from _health()
    yield from _reflection()


def _health() -> Iterator[tuple[str, GrpcCall]]:
    service = "/grpc.health.v1.Health/"
    for what, (name, _) in NAMES.items():
        asked = health_pb2.HealthCheckRequest(service=name)
        checked = MISSING if name else "OK"  # "" is the server itself
        for method, status in (("Check", checked), ("Watch", "OK")):
            call = GrpcCall(service + method, [asked], TOO_LARGE if name == MEGABYTE else status)
            yield f"health, {method}: {what}", call


def _reflection() -> Iterator[tuple[str, GrpcCall]]:
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    for field in ("file_by_filename", "file_containing_symbol", "all_extension_numbers_of_type"):
        for what, (name, _) in NAMES.items():
            asked = reflection_pb2.ServerReflectionRequest(**{field: name})
            yield f"reflection: {field}: {what}", GrpcCall(method, [asked], "OK")
    numbers = reflection_pb2.ExtensionRequest(containing_type="braid.v1.Model", extension_number=-1)
    asked = reflection_pb2.ServerReflectionRequest(file_containing_extension=numbers)
    yield "reflection: an extension of -1", GrpcCall(method, [asked], "OK")
