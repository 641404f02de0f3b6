"""Names that would be code, markup, log lines or paths, through every field that takes a name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf.message import Message
from onnx import helper
from tritonclient.grpc import service_pb2 as oip

from braid_client.wire import admin_pb2 as wire
from braid_client.wire import inference_pb2
from tests.attack.messages.grpc_calls import ADMIN, BRAID, OIP
from tests.attack.messages.http_requests import get, post
from tests.attack.target import PREY
from tests.models.graphs import graph, save, tensors

MARK = "ATTACKED"
"""In each name, so that it is found wherever it comes out."""

NAMES = (
    f"<script>{MARK}</script>",
    f"\"'><img src=x onerror={MARK}>",
    f"{{{{7*7}}}}{MARK}${{jndi:ldap://x/{MARK}}}%n%s",
    f'{MARK}"}} 1\nbraid_attacked{{x="',
    f"{MARK}\n2026-01-01T00:00:00.000Z ERROR   braid.rpc  {MARK}",
    f"\r\nSet-Cookie: {MARK}=1\r\n\r\n<html>",
    f"\x1b[2J\x1b]0;{MARK}\x07\x00\u202e\u2028",
    f"../../../{MARK}",
    f"/dev/shm/{MARK}",
    f"'; DROP TABLE models; -- {MARK}",
    MARK * 5000,
)


def messages(name: str) -> Iterator[tuple[str, Message]]:
    """Yield method and message, with the name wherever one is taken."""
    tensor = inference_pb2.Tensor(name=name, dtype=name, shape=(1, 3))
    for fields in ({"model": name}, {"model": PREY, "version": name}, {"model": PREY}):
        asked: Any = {**fields, "inputs": [tensor], "outputs": [name], "request_id": name}
        yield f"{BRAID}Infer", inference_pb2.InferRequest(**asked)
    given = oip.ModelInferRequest.InferInputTensor(name=name, datatype=name, shape=(1, 3))
    given.parameters[name].string_param = name
    yield f"{OIP}ModelInfer", oip.ModelInferRequest(model_name=PREY, id=name, inputs=[given])
    for header in (
        wire.RegisterModelHeader(name=name),
        wire.RegisterModelHeader(name="a", precision=name),
        wire.RegisterModelHeader(name="a", planner=wire.PlannerOptions(name=name)),
        wire.RegisterModelHeader(name="a", input_shapes={name: wire.Shape(dims=[-1])}),
    ):
        yield f"{ADMIN}RegisterModel", wire.RegisterModelRequest(header=header)
    yield f"{ADMIN}SetServing", wire.ServingConfig(model=PREY, labels={name: 1})
    yield f"{ADMIN}GetSchedule", wire.GetScheduleRequest(model=PREY, device=name)
    yield f"{ADMIN}CancelJob", wire.CancelJobRequest(job_id=name)
    yield f"{ADMIN}DeleteModel", wire.DeleteModelRequest(model=name)
    yield f"{OIP}RepositoryModelLoad", oip.RepositoryModelLoadRequest(model_name=name)
    yield (
        f"{OIP}SystemSharedMemoryRegister",
        oip.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", byte_size=1),
    )
    log = oip.LogSettingsRequest()
    log.settings[name].string_param = name
    yield f"{OIP}LogSettings", log
    service = "".join(each for each in name if each.isascii() and each.isprintable())[:1000]
    yield f"/{service}/Method", log


def requests(name: str) -> Iterator[bytes]:
    """Yield requests of HTTP, with the name wherever one is taken."""
    path = quote(name, safe="")
    for below in ("models/", "jobs/", "schedules/", "", f"models/{PREY}?version=", "?q="):
        yield get(f"/console/{below}{path}", 0).data
    yield post("/console/sign-in", f"token={path}", 0).data
    yield post(f"/console/models/{path}/1/delete", "", 0).data
    yield get(f"/v2/models/{path}", 0).data
    yield post(f"/v2/models/{path}/load", "{}", 0).data
    yield get(f"/{path}", 0).data
    header = "".join(character for character in name if character.isprintable())[:4000]
    yield get("/console/", 0, User_Agent=header, Referer=header, Cookie=header).data
    yield get("/console/", 0, Host=header).data


def model(name: str, path: Path) -> Path:
    """Write a model whose graph, operators, tensors and extents have the name."""
    nodes = [
        helper.make_node("Relu", [f"x{name}"], [f"h{name}"], name=name, doc_string=name),
        helper.make_node("Add", [f"h{name}", f"h{name}"], [f"y{name}"], name=f"{name}2"),
    ]
    shape = [f"batch{name}", 3]
    inputs, outputs = tensors(**{f"x{name}": shape}), tensors(**{f"y{name}": shape})
    return save(graph(nodes, inputs, outputs, {}, name), path)
