"""Calls of every RPC of the Open Inference Protocol; inputs that are wrong: see ``tensors``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as oip

from tests.attack.messages.admin import NAMES
from tests.attack.messages.grpc_calls import IN_STREAM, OIP, GrpcCall
from tests.attack.messages.inference import INVALID, MEGABYTE, MISSING
from tests.attack.messages.tensors import ROW
from tests.attack.target import PREY

BEYOND = 1 << 62
LONGEST = (1 << 63) - 1


def value(given: Any) -> oip.InferParameter:
    """Return a parameter."""
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    return oip.InferParameter(**{kinds[type(given)]: given})


def parameters(given: Mapping[str, Any]) -> dict[str, oip.InferParameter]:
    """Return parameters by name."""
    return {name: value(each) for name, each in given.items()}


def x(
    contents: Mapping[str, Any] | None = None, **fields: Any
) -> oip.ModelInferRequest.InferInputTensor:
    """Return an input, with typed contents if there are any."""
    made = oip.ModelInferRequest.InferInputTensor(
        **{"name": "x", "datatype": "FP32", "shape": (1, 3), **fields}
    )
    if contents is not None:
        made.contents.CopyFrom(oip.InferTensorContents(**contents))
    return made


def request(*raw: bytes, **fields: Any) -> oip.ModelInferRequest:
    """Return a request with raw contents, right but for ``fields``."""
    made = {"model_name": PREY, "inputs": [x()], **fields}
    return oip.ModelInferRequest(**made, raw_input_contents=raw)


def typed(contents: Mapping[str, Any], **fields: Any) -> oip.ModelInferRequest:
    """Return a request with typed contents."""
    return request(inputs=[x(contents, **fields)])


def asked(**given: Any) -> oip.ModelInferRequest:
    """Return a right request with parameters."""
    return request(ROW, parameters=parameters(given))


def placed(**given: Any) -> oip.ModelInferRequest:
    """Return a request whose input has parameters."""
    return request(inputs=[x(parameters=parameters(given))])


def wanted(*names: str, **given: Any) -> oip.ModelInferRequest:
    """Return a request for outputs with parameters."""
    outputs = [
        oip.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters(given))
        for name in names
    ]
    return request(ROW, outputs=outputs)


FLOATS = {"fp32_contents": [0.0, 1.0, 2.0]}
REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"

REQUESTS: Mapping[str, tuple[oip.ModelInferRequest, tuple[str, ...]]] = {
    "two contents for one input": (request(ROW, ROW), ("2 entries for 1 inputs",)),
    "ten thousand contents": (request(*[b""] * 10_000), ("10000 entries for 1 inputs",)),
    "contents for no input": (request(ROW, inputs=[]), ("1 entries for 0 inputs",)),
    "raw and typed contents": (request(ROW, inputs=[x(FLOATS)]), ("typed contents beside",)),
    "no contents": (request(), ("0 bytes of data",)),
    "too few typed": (typed({"fp32_contents": [1.0]}), ("4 bytes of data",)),
    "too many typed": (typed({"fp32_contents": [1.0] * 100_000}), ("400000 bytes of data",)),
    "typed as another": (typed({"int_contents": [1, 2, 3]}), ("belong in fp32_contents",)),
    "typed as two": (typed({**FLOATS, "int_contents": [1]}), ("belong in fp32_contents",)),
    "typed FP16": (typed(FLOATS, datatype="FP16"), ("'FP16' has no typed contents",)),
    "typed BF16": (typed(FLOATS, datatype="BF16"), ("'BF16' has no typed contents",)),
    "typed without a datatype": (typed(FLOATS, datatype=""), ("'' has no typed contents",)),
    "typed of a megabyte": (typed(FLOATS, datatype=MEGABYTE), ("input 'x' of datatype 'mmm",)),
    "an INT8 of 128": (typed({"int_contents": [128]}, datatype="INT8"), ("the range of INT8",)),
    "a UINT8 of 256": (typed({"uint_contents": [256]}, datatype="UINT8"), ("the range of UINT8",)),
    "an output twice": (wanted("y", "y"), ("requested twice",)),
    "an output that is none": (wanted("z"), ("no output 'z'",)),
    "an unknown parameter of an output": (wanted("y", color=1), ("unknown parameter 'color'",)),
    "-1 classes": (wanted("y", classification=-1), ("'classification' is -1",)),
    "2^62 classes": (wanted("y", classification=BEYOND), ("'classification' is 4611",)),
    "a word for classes": (wanted("y", classification="all"), ("must be an integer",)),
    "truth for classes": (wanted("y", classification=True), ("must be an integer",)),
    "classes to nowhere": (
        wanted("y", **{REGION: "gone", SIZE: 12, "classification": 1}),
        ("classification",),
    ),
    "an unknown parameter of an input": (placed(color=1), ("unknown parameter 'color'",)),
    "a parameter of a megabyte": (placed(**{MEGABYTE: 1}), ("unknown parameter 'mmm",)),
    "a number for a region": (placed(**{REGION: 7, SIZE: 12}), ("must name a registered region",)),
    "no name of a region": (placed(**{REGION: "", SIZE: 12}), ("must name a registered region",)),
    "a region without a size": (placed(**{REGION: "gone"}), ("is missing beside",)),
    "a size without a region": (placed(**{SIZE: 12}), ("must name a registered region",)),
    "a region of -1": (placed(**{REGION: "gone", SIZE: -1}), (f"'{SIZE}' is -1",)),
    "a region of 2^63": (placed(**{REGION: "gone", SIZE: LONGEST}), (f"'{SIZE}' is 9223",)),
    "a region before its begin": (
        placed(**{REGION: "g", SIZE: 1, OFFSET: -1}),
        (f"'{OFFSET}' is -1",),
    ),
    "priority as a word": (asked(priority="high"), ("'priority' must be an integer",)),
    "priority 11": (asked(priority=11), ("'priority' is 11",)),
    "priority -1": (asked(priority=-1), ("'priority' is -1",)),
    "a timeout of -1": (asked(timeout=-1), ("'timeout' is -1",)),
    "a timeout of 2^63": (asked(timeout=LONGEST), ("'timeout' is 9223",)),
    "a reserved parameter": (asked(triton_x=1), ("'triton_x' is reserved",)),
    "a header": (asked(headers="x"), ("'headers' is reserved",)),
    "an id of a megabyte": (request(ROW, id=MEGABYTE), ("longer than 128 bytes",)),
}
"""A request to ModelInfer, and words of the refusal: all are INVALID_ARGUMENT."""

OTHERS: Mapping[str, tuple[oip.ModelInferRequest, str, tuple[str, ...]]] = {
    "a sequence": (asked(sequence_id=7), "UNIMPLEMENTED", ("models with state",)),
    "a sequence by name": (asked(sequence_id="s"), "UNIMPLEMENTED", ("models with state",)),
    "a region that is gone": (placed(**{REGION: "gone", SIZE: 12}), MISSING, ("'gone'",)),
    "an output to a region that is gone": (
        wanted("y", **{REGION: "gone", SIZE: 12}),
        MISSING,
        ("'gone'",),
    ),
    "an unknown model": (request(ROW, model_name="nobody"), MISSING, ("'nobody'",)),
    "an unknown version": (request(ROW, model_version="7"), MISSING, ("no version '7'",)),
}
"""A request to ModelInfer, the status, and words of the message."""


def load(**given: Any) -> oip.RepositoryModelLoadRequest:
    """Return a request to load a model."""
    made = oip.RepositoryModelLoadRequest(model_name="loaded")
    for name, each in given.items():
        kind = "bytes_param" if isinstance(each, bytes) else "string_param"
        made.parameters[name].CopyFrom(oip.ModelRepositoryParameter(**{kind: each}))
    return made


def configured(**fields: Any) -> oip.RepositoryModelLoadRequest:
    """Return a request to load a model with a configuration."""
    return load(config=json.dumps(fields))


LOADS: Mapping[str, tuple[oip.RepositoryModelLoadRequest, tuple[str, ...]]] = {
    "an unknown parameter": (load(color="red"), ("'color'",)),
    "a configuration as bytes": (load(config=b"{}"), ("must be a string",)),
    "a configuration that is no JSON": (load(config="{"), ("JSON",)),
    "a configuration in a list": (load(config="[1]"), ("config",)),
    "a configuration 5,000 deep": (load(config="[" * 5000), ("JSON",)),
    "a word for a batch": (configured(max_batch_size="many"), ("max_batch_size",)),
    "a batch of -1": (configured(max_batch_size=-1), ("max_batch_size",)),
    "a batch of 2^62": (configured(max_batch_size=BEYOND), ("max_batch_size",)),
    "a library as the backend": (configured(backend="../../lib.so"), ("backend",)),
    "an unknown platform": (configured(platform="python"), ("platform",)),
    "a field of nowhere": (configured(color="red"), ("color",)),
    "version 0": (load(**{"file:0/model.onnx": b"x"}), ("file:0/model.onnx",)),
    "version -1": (load(**{"file:-1/model.onnx": b"x"}), ("file:-1/model.onnx",)),
    "a version beyond 64 bits": (load(**{f"file:{'9' * 30}/m": b"x"}), ("file:999",)),
    "a path for a file": (load(**{"file:1/../../m": b"x"}), ("file:1/../../m",)),
    "a file without a name": (load(**{"file:1/": b"x"}), ("file:1/",)),
    "a file as a string": (load(**{"file:1/model.onnx": "x"}), ("bytes",)),
    "two files of a version": (load(**{"file:1/a": b"x", "file:1/b": b"y"}), ("1",)),
    "a file that is no model": (
        load(**{"config": "{}", "file:1/model.onnx": b"#!/bin/sh"}),
        ("model",),
    ),
    "no file": (load(**{"config": "{}", "file:1/model.onnx": b""}), ("version 1 is empty",)),
}
"""A request to RepositoryModelLoad, and words of the refusal: all are INVALID_ARGUMENT."""


def region(**fields: Any) -> oip.SystemSharedMemoryRegisterRequest:
    """Return a request to register shared memory, of an object that is not there."""
    made = {"name": "hostile", "key": "/braid_not_there", "byte_size": 64, **fields}
    return oip.SystemSharedMemoryRegisterRequest(**made)


NO_OBJECT = ("is not the name of a shared memory object",)
REGIONS: Mapping[str, tuple[oip.SystemSharedMemoryRegisterRequest, str, tuple[str, ...]]] = {
    "no name": (region(name=""), INVALID, ("name",)),
    "a name of a megabyte": (region(name=MEGABYTE), INVALID, ("name",)),
    "no key": (region(key=""), INVALID, NO_OBJECT),
    "a path out of the folder": (region(key="/../etc/passwd"), INVALID, NO_OBJECT),
    "a path into a folder": (region(key="/a/b"), INVALID, NO_OBJECT),
    "the folder": (region(key="/."), INVALID, NO_OBJECT),
    "the folder above": (region(key="/.."), INVALID, NO_OBJECT),
    "a key with a NUL": (region(key="/a\x00b"), INVALID, NO_OBJECT),
    "a key of a megabyte": (region(key=f"/{MEGABYTE}"), INVALID, NO_OBJECT),
    "no bytes": (region(byte_size=0), INVALID, ("at least 1 byte",)),
    "an object that is not there": (region(), MISSING, ("'/braid_not_there'",)),
    "2^64 bytes of it": (region(byte_size=(1 << 64) - 1), MISSING, ("no shared memory object",)),
    "a part that overflows": (region(offset=LONGEST, byte_size=LONGEST), MISSING, ()),
}
"""A request to register shared memory, the status, and words of the message."""


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
    "a rate of 0": ("TraceSetting", traces(trace_rate=["0"]), ["from 1 on"]),
    "a rate of a megabyte": ("TraceSetting", traces(trace_rate=["1" * (1 << 20)]), ["from 1 on"]),
    "a rate in other digits": ("TraceSetting", traces(trace_rate=["\u0661"]), ["from 1 on"]),
    "a count of -2": ("TraceSetting", traces(trace_count=["-2"]), ["from -1 on"]),
}
"""Method, a request to change settings, and words of the refusal: all are INVALID_ARGUMENT."""


def calls() -> Iterator[tuple[str, GrpcCall]]:
    """Yield all cases by name."""
    infer, stream = f"{OIP}ModelInfer", f"{OIP}ModelStreamInfer"
    table = {what: (message, INVALID, words) for what, (message, words) in REQUESTS.items()}
    for what, (message, status, words) in {**table, **OTHERS}.items():
        yield f"ModelInfer: {what}", GrpcCall(infer, [message], status, words)
        yield f"ModelStreamInfer: {what}", GrpcCall(stream, [message], IN_STREAM, words)
    for what, (message, words) in LOADS.items():
        yield f"load: {what}", GrpcCall(f"{OIP}RepositoryModelLoad", [message], INVALID, words)
    for what, (message, status, words) in REGIONS.items():
        register = f"{OIP}SystemSharedMemoryRegister"
        yield f"region: {what}", GrpcCall(register, [message], status, words)
    for what, (method, setting, told) in SETTINGS.items():
        yield f"settings: {what}", GrpcCall(OIP + method, [setting], INVALID, told)
    yield from _of_nobody()
    yield from _not_offered()
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield f"{method}: unknown fields", GrpcCall(OIP + method, [b"\x7a\x03abc" * 1000], "OK")


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
