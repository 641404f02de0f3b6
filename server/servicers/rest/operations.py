"""Calls of the protocol over HTTP, and of ours: method, path, and the RPC behind each.

Paths name models and versions; a body, if there is one, holds the rest of the RPC's request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from braid.core.pieces import Work
from braid.server.servicers.admin import SERVICE as ADMIN
from braid.server.servicers.oip.parameters import value_of
from braid.server.servicers.oip.wire import SERVICE
from braid.server.servicers.rest import json_messages as bodies
from braid.server.servicers.rest.json_messages import to_json

INFER = "ModelInfer"
PREDICT, V1_MODELS = "predict", "models"
"""Forms of operations that differ from the RPC behind them."""

Shown = tuple[Any, int]
"""Answer for JSON, and its status."""


def _as_it_is(answer: Any) -> Shown:
    return to_json(answer), HTTPStatus.OK


def _flag(answer: Any) -> Shown:
    """Return ``live`` or ``ready``; false has a status that probes understand."""
    shown = to_json(answer)
    is_up = all(shown.values())
    return shown, HTTPStatus.OK if is_up else HTTPStatus.SERVICE_UNAVAILABLE


def _member(name: str) -> Callable[[Any], Shown]:
    return lambda answer: (to_json(answer)[name], HTTPStatus.OK)


def _regions(answer: Any) -> Shown:
    return list(to_json(answer)["regions"].values()), HTTPStatus.OK


def _log_settings(answer: Any) -> Shown:
    settings = answer.settings
    return {name: value_of(settings[name]) for name in sorted(settings)}, HTTPStatus.OK


def _trace_settings(answer: Any) -> Shown:
    """Return settings; all but the levels have one value."""
    shown = {}
    for name in sorted(answer.settings):
        values = list(answer.settings[name].value)
        shown[name] = values if name == "trace_level" else values[0]
    return shown, HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class Operation:
    """One call."""

    method: str
    path: str
    rpc: str
    summary: str
    fields: Mapping[str, str] = field(default_factory=dict)  # of the path -> of the RPC's request
    read: Callable[[dict[str, Any], Any], Work[None] | None] | None = None  # the body, if any
    show: Callable[[Any], Shown] = _as_it_is
    service: ServiceDescriptor = SERVICE  # that the RPC is of
    form: str = ""  # of request and answer, if they are not the RPC's

    def request(self) -> Any:
        return GetMessageClass(self.service.methods_by_name[self.rpc].input_type)()


SCHEDULE_AGAIN, PIN_PLAN, GET_MODEL = "ScheduleAgain", "PinPlan", "GetModel"

_MODEL = {"name": "name", "version": "version"}
_NAME = {"name": "model_name"}
_REGION = {"name": "name"}


def _by_version(path: str, rpc: str, summary: str, **more: Any) -> tuple[Operation, ...]:
    """Return the call about a model, and the same about one of its versions."""
    method, fields = more.pop("method", "GET"), more.pop("fields", _MODEL)
    begin = "/v2/models/{name}"
    return (
        Operation(method, f"{begin}{path}", rpc, summary, fields, **more),
        Operation(
            *(method, f"{begin}/versions/{{version}}{path}", rpc),
            *(f"{summary}, of one version", fields),
            **more,
        ),
    )


def _shared_memory(kind: str, prefix: str, words: str) -> tuple[Operation, ...]:
    status, register = f"{prefix}SharedMemoryStatus", f"{prefix}SharedMemoryRegister"
    unregister, begin = f"{prefix}SharedMemoryUnregister", f"/v2/{kind}"
    read = bodies.read_region if prefix == "System" else None  # refused whatever it says
    region = f"{begin}/region/{{name}}"
    return (
        Operation("GET", f"{begin}/status", status, f"Regions of {words}", show=_regions),
        Operation(
            *("GET", f"{region}/status", status, f"One region of {words}", _REGION),
            show=_regions,
        ),
        Operation("POST", f"{region}/register", register, f"Register {words}", _REGION, read),
        Operation("POST", f"{region}/unregister", unregister, f"Forget {words}", _REGION),
        Operation("POST", f"{begin}/unregister", unregister, f"Forget all {words}"),
    )


OPERATIONS: tuple[Operation, ...] = (
    *_by_version("/infer", INFER, "Run a model", method="POST", form=INFER),
    *(
        Operation("POST", f"/v1/models/{{name}}{path}:predict", INFER, summary, form=PREDICT)
        for path, summary in (
            ("", "Run a model, in KServe's V1 form"),
            ("/versions/{version}", "Run one version of a model, in KServe's V1 form"),
        )
    ),
    Operation("GET", "/v1/models", "ModelReady", "Names of models that answer", form=V1_MODELS),
    Operation("GET", "/v1/models/{name}", "ModelReady", "State of a model", form=V1_MODELS),
    Operation("GET", "/v2/health/live", "ServerLive", "The process lives", show=_flag),
    Operation("GET", "/v2/health/ready", "ServerReady", "Inference is possible", show=_flag),
    Operation("GET", "/v2", "ServerMetadata", "Name, version and extensions of the server"),
    Operation("GET", "/v2/models/stats", "ModelStatistics", "Statistics of all models"),
    *_by_version("/ready", "ModelReady", "A model answers", show=_flag),
    *_by_version("", "ModelMetadata", "Inputs and outputs of a model"),
    *_by_version("/config", "ModelConfig", "How a model is served", show=_member("config")),
    *_by_version("/stats", "ModelStatistics", "Statistics of a model"),
    *_by_version(
        *("/schedule/again", SCHEDULE_AGAIN, "Measure and make schedules of a model again"),
        method="POST",
        fields={"name": "model", "version": "version"},
        read=bodies.read_schedule_again,
        service=ADMIN,
    ),
    *_by_version(
        *("/schedules", GET_MODEL, "Schedules of a model, and how their candidates fare"),
        fields={"name": "model", "version": "version"},
        show=_member("schedules"),
        service=ADMIN,
    ),
    Operation(
        *("POST", "/v2/models/{name}/schedule/pin", PIN_PLAN, "Let one plan of a model serve"),
        *({"name": "model"}, bodies.read_pin_plan),
        service=ADMIN,
    ),
    Operation(
        *("POST", "/v2/repository/index", "RepositoryIndex", "All models and versions"),
        read=bodies.read_index,
        show=_member("models"),
    ),
    Operation(
        *("POST", "/v2/repository/models/{name}/load", "RepositoryModelLoad", "Load a model"),
        *(_NAME, bodies.read_load),
    ),
    Operation(
        *("POST", "/v2/repository/models/{name}/unload", "RepositoryModelUnload"),
        *("Unload a model", _NAME, bodies.read_load),
    ),
    *_shared_memory("systemsharedmemory", "System", "system shared memory"),
    *_shared_memory("cudasharedmemory", "Cuda", "CUDA shared memory"),
    Operation("GET", "/v2/logging", "LogSettings", "Settings of the log", show=_log_settings),
    Operation(
        *("POST", "/v2/logging", "LogSettings", "Change the log"),
        read=bodies.read_log_settings,
        show=_log_settings,
    ),
    *(
        Operation(
            *(method, f"/v2{model}/trace/setting", "TraceSetting", f"{summary}{of}"),
            *({"name": "model_name"} if model else {}, read),
            show=_trace_settings,
        )
        for model, of in (("", ""), ("/models/{name}", ", of one model"))
        for method, summary, read in (
            ("GET", "Which requests are traced", None),
            ("POST", "Change which requests are traced", bodies.read_trace_settings),
        )
    ),
)
"""All calls, inference first."""
