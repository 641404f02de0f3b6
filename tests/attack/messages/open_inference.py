"""Calls of every RPC of the Open Inference Protocol but those to infer: see ``bad_requests``."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as oip

from tests.attack.messages.admin import NAMES
from tests.attack.messages.bad_requests import BEYOND, MEGABYTE, MOST
from tests.attack.messages.doors import HTTP_STATUS, INVALID, MISSING, Inexpressible
from tests.attack.messages.grpc_calls import OIP, GrpcCall
from tests.attack.messages.http_requests import HttpRequest, of_protocol, post
from tests.attack.target import PREY


def configured(**fields: Any) -> Mapping[str, str | bytes]:
    """Parameters of a load: a configuration of Triton."""
    return {"config": json.dumps(fields)}


LOADS: Mapping[str, tuple[Mapping[str, str | bytes], Sequence[str]]] = {
    "an unknown parameter": ({"color": "red"}, ["'color'"]),
    "a configuration as bytes": ({"config": b"{}"}, ["must be a string"]),
    "a configuration that is no JSON": ({"config": "{"}, ["JSON"]),
    "a configuration in a list": ({"config": "[1]"}, ["config"]),
    "a configuration 5,000 deep": ({"config": "[" * 5000}, ["JSON"]),
    "a word for a batch": (configured(max_batch_size="many"), ["max_batch_size"]),
    "a batch of 100,000": (configured(max_batch_size=100_000), ["batch sizes"]),
    "a batch of 2^62": (configured(max_batch_size=BEYOND), ["max_batch_size"]),
    "a library as the backend": (configured(backend="../../lib.so"), ["backend"]),
    "a field of nowhere": (configured(color="red"), ["color"]),
    "version 0": ({"file:0/model.onnx": b"x"}, ["file:0/model.onnx"]),
    "version -1": ({"file:-1/model.onnx": b"x"}, ["file:-1/model.onnx"]),
    "a version beyond 64 bits": ({f"file:{'9' * 30}/m": b"x"}, ["file:999"]),
    "no version": ({"file:model.onnx": b"x"}, ["file:1/model.onnx"]),
    "a path for a file": ({"file:1/../../m": b"x"}, ["file:1/../../m"]),
    "a file outside": ({"file:../../etc/passwd": b"x"}, ["file:1/model.onnx"]),
    "a file without a name": ({"file:1/": b"x"}, ["file:1/"]),
    "a file as a string": ({"file:1/model.onnx": "x"}, ["bytes"]),
    "two files of a version": ({"file:1/a": b"x", "file:1/b": b"y"}, ["two files", "1"]),
    "a script": ({"config": "{}", "file:1/model.onnx": b"#!/bin/sh"}, ["model"]),
    "a file that is no model": ({"file:1/model.onnx": b"this is no model"}, ["ONNX"]),
    "no file": ({"config": "{}", "file:1/model.onnx": b""}, ["version 1 is empty"]),
    "an empty file": ({"file:1/model.onnx": b""}, ["empty"]),
}
"""Parameters of a request to load a model, and words of the refusal: all are INVALID_ARGUMENT."""


def load_call(parameters: Mapping[str, str | bytes], words: Sequence[str]) -> GrpcCall:
    request = oip.RepositoryModelLoadRequest(model_name="loaded")
    for name, value in parameters.items():
        kind = "bytes_param" if isinstance(value, bytes) else "string_param"
        request.parameters[name].CopyFrom(oip.ModelRepositoryParameter(**{kind: value}))
    return GrpcCall(f"{OIP}RepositoryModelLoad", [request], INVALID, words)


def load_request(parameters: Mapping[str, str | bytes], words: Sequence[str]) -> HttpRequest:
    """The same over REST, where a file is text in base64 and nothing else can be bytes.

    Raises:
        Inexpressible: something is of the other kind.
    """
    shown = {}
    for name, value in parameters.items():
        if isinstance(value, bytes) != name.startswith("file:"):
            raise Inexpressible("rest: files are bytes, and only these")
        shown[name] = b64encode(value).decode() if isinstance(value, bytes) else value
    body = json.dumps({"parameters": shown})
    return of_protocol(post("/v2/repository/models/loaded/load", body, 400, words))


@dataclass(frozen=True, slots=True)
class Region:
    """Shared memory to register, of an object that is not there unless ``key`` says another."""

    words: Sequence[str]
    status: str = INVALID
    key: str = "/braid_not_there"
    name: str = "hostile"
    offset: int = 0
    byte_size: int = 64


def no_object(key: str) -> Region:
    return Region(["is not the name of a shared memory object"], key=key)


REGIONS: Mapping[str, Region] = {
    "no name": Region(["name"], name=""),
    "a name of a megabyte": Region(["name"], name=MEGABYTE),
    "no key": no_object(""),
    "a path out of the folder": no_object("/../etc/passwd"),
    "a path into a folder": no_object("/a/b"),
    "the folder": no_object("/."),
    "the folder above": no_object("/.."),
    "the folder above without a slash": no_object(".."),
    "a key with a NUL": no_object("/a\x00b"),
    "a key of 300": no_object("k" * 300),
    "a key of a megabyte": no_object(f"/{MEGABYTE}"),
    "no bytes": Region(["at least 1 byte"], byte_size=0),
    "an object that is not there": Region(["'/braid_not_there'"], MISSING),
    "2^64 bytes of it": Region(["no shared memory object"], MISSING, byte_size=(1 << 64) - 1),
    "a part that overflows": Region([], MISSING, offset=MOST, byte_size=MOST),
}


def region_call(region: Region) -> GrpcCall:
    request = oip.SystemSharedMemoryRegisterRequest(
        name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
    )
    method = f"{OIP}SystemSharedMemoryRegister"
    return GrpcCall(method, [request], region.status, region.words)


def region_request(region: Region) -> HttpRequest:
    """The same over REST.

    Raises:
        Inexpressible: the name is no part of a path, or JSON has no such number here.
    """
    if not region.name or len(region.name) > 10_000 or region.byte_size > MOST:
        raise Inexpressible("rest: a name is part of a path, and numbers end at 2^63")
    path = f"/v2/systemsharedmemory/region/{region.name}/register"
    body = {"key": region.key, "offset": region.offset, "byte_size": region.byte_size}
    status = HTTP_STATUS[region.status]
    return of_protocol(post(path, json.dumps(body), status, region.words))


def settings(kind: Any, **given: Any) -> Any:
    """Return a request to change settings of the log or of traces."""
    made = kind()
    for name, each in given.items():
        setting = made.settings[name]
        if isinstance(each, list):
            setting.value.extend(each)
        else:
            kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
            setattr(setting, kinds[type(each)], each)
    return made


def logs(**given: Any) -> Any:
    return settings(oip.LogSettingsRequest, **given)


def traces(**given: Any) -> Any:
    return settings(oip.TraceSettingRequest, **given)


SETTINGS: Mapping[str, tuple[str, Message, Sequence[str]]] = {
    "a log of nowhere": ("LogSettings", logs(color=True), ["'color' is not known"]),
    "a log by a megabyte": ("LogSettings", logs(**{MEGABYTE: True}), ["'mmm"]),
    "a word for a level": ("LogSettings", logs(log_info="yes"), ["'log_info' must be a bool"]),
    "a truth for a number": ("LogSettings", logs(log_verbose_level=True), ["uint32"]),
    "a file for the log": ("LogSettings", logs(log_file="/etc/cron.d/x"), ["log_file is decided"]),
    "a format for the log": ("LogSettings", logs(log_format="%n"), ["log_format is decided"]),
    "levels that contradict": ("LogSettings", logs(log_info=True, log_error=False), ["contains"]),
    "a trace of nowhere": ("TraceSetting", traces(color=["1"]), ["'color' is not known"]),
    "two rates": ("TraceSetting", traces(trace_rate=["1", "2"]), ["takes one value"]),
    "a rate of a megabyte": ("TraceSetting", traces(trace_rate=["1" * (1 << 20)]), ["from 1 on"]),
    "a rate in other digits": ("TraceSetting", traces(trace_rate=["\u0661"]), ["from 1 on"]),
}
"""Method, a request to change settings, and words of the refusal: all are INVALID_ARGUMENT."""


def calls() -> Iterator[tuple[str, GrpcCall]]:
    """Yield all cases by name that only gRPC has."""
    for what, (method, setting, told) in SETTINGS.items():
        yield f"settings: {what}", GrpcCall(OIP + method, [setting], INVALID, told)
    yield from _of_nobody()
    yield from _not_offered()
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield f"{method}: unknown fields", GrpcCall(OIP + method, [b"\x7a\x03abc" * 500], "OK")


def _of_nobody() -> Iterator[tuple[str, GrpcCall]]:
    for what, (name, shown) in NAMES.items():
        yield (
            f"ModelReady: {what}",
            GrpcCall(f"{OIP}ModelReady", [oip.ModelReadyRequest(name=name)], "OK"),
        )
        for method, message in (
            ("ModelMetadata", oip.ModelMetadataRequest(name=name)),
            ("ModelConfig", oip.ModelConfigRequest(name=name)),
            ("ModelStatistics", oip.ModelStatisticsRequest(name=name)),
            ("RepositoryModelUnload", oip.RepositoryModelUnloadRequest(model_name=name)),
            ("RepositoryModelLoad", oip.RepositoryModelLoadRequest(model_name=name)),
            ("SystemSharedMemoryStatus", oip.SystemSharedMemoryStatusRequest(name=name)),
            ("SystemSharedMemoryUnregister", oip.SystemSharedMemoryUnregisterRequest(name=name)),
        ):
            status = MISSING
            if method == "SystemSharedMemoryUnregister" or (not name and method in _OF_ALL):
                status = "OK"
            elif method == "RepositoryModelLoad" and name != "nobody":
                status = INVALID
            words = () if status == "OK" else (shown,)
            yield f"{method}: {what}", GrpcCall(OIP + method, [message], status, words)


_OF_ALL = ("ModelStatistics", "SystemSharedMemoryStatus")  # without a name


def _not_offered() -> Iterator[tuple[str, GrpcCall]]:
    other = "../other"
    unload = oip.RepositoryModelUnloadRequest(model_name=PREY)
    unload.parameters["color"].string_param = "red"
    for method, message, status in (
        ("RepositoryIndex", oip.RepositoryIndexRequest(repository_name=other), "UNIMPLEMENTED"),
        (
            "RepositoryModelLoad",
            oip.RepositoryModelLoadRequest(repository_name=other),
            "UNIMPLEMENTED",
        ),
        (
            "RepositoryModelUnload",
            oip.RepositoryModelUnloadRequest(repository_name=other),
            "UNIMPLEMENTED",
        ),
        ("RepositoryModelUnload", unload, INVALID),
        ("TraceSetting", oip.TraceSettingRequest(model_name=PREY), "UNIMPLEMENTED"),
        ("CudaSharedMemoryStatus", oip.CudaSharedMemoryStatusRequest(name=other), "UNIMPLEMENTED"),
        (
            "CudaSharedMemoryRegister",
            oip.CudaSharedMemoryRegisterRequest(name=other, raw_handle=b"x" * 64),
            "UNIMPLEMENTED",
        ),
        ("CudaSharedMemoryUnregister", oip.CudaSharedMemoryUnregisterRequest(), "UNIMPLEMENTED"),
    ):
        yield f"{method} {status}", GrpcCall(OIP + method, [message], status)
