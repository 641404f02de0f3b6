"""Requests to REST and to the paths beside it; what every door can say: see ``bad_requests``."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.attack.messages.doors import LENGTH
from tests.attack.messages.http_requests import HttpRequest, get, of_protocol, post
from tests.attack.target import PREY

INFER = f"/v2/models/{PREY}/infer"
PREDICT = f"/v1/models/{PREY}:predict"
BOMB = gzip.compress(bytes(100 << 20))  # 100 KB that are 100 MB

RIGHT: Mapping[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 1, 2]}


def body(**changes: Any) -> str:
    """Return JSON of a right request but for ``changes`` of its input; None: left out."""
    given = {name: value for name, value in {**RIGHT, **changes}.items() if value is not None}
    return json.dumps({"inputs": [given]})


def around(**fields: Any) -> str:
    """Return JSON of a right request with further members."""
    return json.dumps({"inputs": [RIGHT], **fields})


BODIES: Mapping[str, tuple[str | bytes, Sequence[str]]] = {
    "nothing": ("", ["'inputs' must be a list"]),
    "an empty object": ("{}", ["'inputs' must be a list"]),
    "no JSON": ("{", ["not JSON"]),
    "two objects": ("{}{}", ["not JSON"]),
    "JSON and a NUL": ("{}\x00", ["not JSON"]),
    "no text": (b'{"inputs": "\xff\xfe"}', ["not JSON"]),
    "noise": (b"\xff\xfe", ["not JSON"]),
    "a list": ("[]", ["no object"]),
    "a number beyond all": ('{"inputs": 1e999}', ["not JSON"]),
    "5,000 lists": ("[" * 5000, ["not JSON"]),
    "100,000 lists": ("[" * 100_000, ["not JSON"]),
    "a million lists": ("[" * 1_000_000 + "]" * 1_000_000, ["524288 elements, lists and objects"]),
    "objects in objects": ('{"a":' * 5000 + "1" + "}" * 5000, ["not JSON"]),
    "NaN 100,000 deep": ('{"inputs":' + "[" * 100_000 + "NaN" + "]" * 100_000 + "}", ["not JSON"]),
    "an object for inputs": ('{"inputs": {}}', ["'inputs' must be a list"]),
    "a number for inputs": ('{"inputs": 1}', ["'inputs' must be a list"]),
    "numbers for inputs": ('{"inputs": [1]}', ["'inputs' must be a list"]),
    "an input of nothing": ('{"inputs": [{}]}', ["'name' of an input must be a string"]),
    "a number for a name": (body(name=7), ["'name' of an input must be a string"]),
    "half a letter": ('{"inputs": [{"name": "\\ud800"}]}', ["not JSON"]),
    "half a letter beside NaN": ('{"inputs": [{"name": "\\ud800"}], "a": NaN}', ["no Unicode"]),
    "a number for a datatype": (body(datatype=7), ["'datatype' of input 'x' must be a string"]),
    "no shape": (body(shape=None), ["no list of integers"]),
    "a word for a shape": (body(shape="13"), ["no list of integers"]),
    "truths for a shape": (body(shape=[True, 3]), ["no list of integers"]),
    "a fraction for an extent": (body(shape=[1.5, 3]), ["no list of integers"]),
    "an extent of 2^63": (body(shape=[1 << 63, 3]), ["no list of integers"]),
    "data and a binary size": (body(parameters={"binary_data_size": 12}), ["choose one"]),
    "a list of parameters": (around(parameters=[]), ["'parameters' of the request is no object"]),
    "an object for a parameter": (
        around(parameters={"priority": {}}),
        ["'priority' has a value that is not offered"],
    ),
    "a list for a parameter": (
        around(parameters={"timeout": [1]}),
        ["'timeout' has a value that is not offered"],
    ),
    "a word for a flag": (
        around(parameters={"binary_data_output": "yes"}),
        ["must be true or false"],
    ),
    "a number for a flag": (around(parameters={"binary_data_output": 1}), ["true or false"]),
    "a number for an output": (around(outputs=[7]), ["'outputs' must be a list of objects"]),
    "a number for an id": (around(id=7), ["'id' of the request must be a string"]),
}
"""Body of a request to infer, and words of the refusal: all are 400."""

PREDICTIONS: Mapping[str, tuple[str | bytes, Sequence[str]]] = {
    "nothing": ("", ["give 'instances'"]),
    "a list": ("[]", ["no object"]),
    "no text": (b'{"instances": "\xff\xfe"}', ["not JSON"]),
    "neither": ("{}", ["give 'instances'"]),
    "both": ('{"instances": [], "inputs": []}', ["give 'instances'"]),
    "5,000 lists": ('{"instances": ' + "[" * 5000, ["not JSON"]),
    "10,000 lists, ended": ('{"instances": ' + "[" * 10_000 + "]" * 10_000 + "}", []),
    "an object of rows": ('{"instances": {}}', ["'instances' is no list"]),
    "no rows": ('{"instances": []}', []),
    "uneven rows": ('{"instances": [[1, 2, 3], [1, 2]]}', ["nested unevenly"]),
    "rows of objects and lists": ('{"instances": [{"x": [1, 2, 3]}, [1, 2, 3]]}', ["no FP32"]),
    "another input": ('{"instances": [{"\\u0000y": [1, 2, 3]}]}', ["no input"]),
    "texts for numbers": ('{"instances": [["a", "b", "c"]]}', []),
    "nulls": ('{"instances": [[null, null, null]]}', []),
    "a number beyond all": ('{"instances": [[1e999, 0, 0]]}', ["not JSON"]),
}
"""Body of a prediction by V1, and words of the refusal: all are 400."""

SIZES: Mapping[str, tuple[object, Sequence[str]]] = {
    "more than there is": (13, ["'x' has the binary_data_size 13", "12 bytes are left"]),
    "less than there is": (11, ["1 bytes after the JSON"]),
    "less than nothing": (-1, ["binary_data_size -1"]),
    "2^62": (1 << 62, ["binary_data_size 4611"]),
    "a fraction": (12.0, ["binary_data_size 12.0"]),
    "a word": ("12", ["binary_data_size '12'"]),
    "truth": (True, ["binary_data_size True"]),
}
"""The size that an input of 12 bytes claims, and words of the refusal: all are 400."""

LENGTHS: Mapping[str, tuple[str, Sequence[str]]] = {
    "longer than the body": ("100000", ["the body has"]),
    "shorter than the JSON": ("5", ["not JSON"]),
    "of nothing": ("0", ["'inputs' must be a list"]),
    "below 0": ("-1", ["is no length"]),
    "a fraction": ("1.0", ["is no length"]),
    "in other digits": ("\u0661", ["is no length"]),
    "of 40 digits": ("9" * 40, ["is no length"]),
    "no number": ("all", ["is no length"]),
}
"""Length that the header claims for the JSON, and words of the refusal: all are 400."""

PATHS: Mapping[str, int] = {
    "/v2/models/../../etc/passwd": 404,
    "/v2/models/..%2f..%2fetc%2fpasswd": 404,
    "/v2/models/%2e%2e/%2e%2e/healthz": 404,
    "/v2/models/%00": 404,
    "/v2/models/%0d%0aSet-Cookie:%20a=b": 404,
    "/v2/models/%ff%fe": 404,
    "/v2/models/%": 404,
    "/v2/models/%zz": 404,
    "/v2/models/%u0061": 404,
    "/v2/models/<script>alert(1)<%2fscript>": 404,
    f"/v2/models/{PREY}/versions/-1": 404,
    f"/v2/models/{PREY}/versions/{'9' * 60}": 404,
    f"/v2/models/{PREY}/versions/%d9%a1": 404,
    f"/v2/models/{PREY}/versions/../../..": 404,
    f"/v2/models/{'n' * 10_000}": 404,
    f"/v2/models/{'n' * 20_000}": 431,
    "/v2/models//": 404,
    "/v2/": 404,
    "//v2": 404,
    "/openapi.json/..": 404,
    "/metrics/../../etc/passwd": 404,
    "/%2e%2e/%2e%2e/etc/passwd": 404,
    "/..%5c..%5cetc%5cpasswd": 404,
    "/healthz%00": 404,
}
"""What is asked for by GET, and the status."""

CHANGES: Mapping[str, tuple[str, str, int, Sequence[str]]] = {
    "load by a path": ("repository/models/..%2fx/load", "{}", 404, ["Not Found"]),
    "load by a bad name": ("repository/models/a%0ab/load", "{}", 400, ["model name"]),
    "load what is not there": ("repository/models/nobody/load", "{}", 404, ["'nobody'"]),
    "load no base64": (
        "repository/models/loaded/load",
        '{"parameters": {"config": "{}", "file:1/model.onnx": "***"}}',
        *(400, ["is not base64"]),
    ),
    "load by an odd parameter": (
        "repository/models/x/load",
        '{"parameters": {"odd": "1"}}',
        *(400, ["'odd'"]),
    ),
    "load by a list": ("repository/models/loaded/load", '{"parameters": [1]}', 400, ["no object"]),
    "unload by an odd parameter": (
        f"repository/models/{PREY}/unload",
        '{"parameters": {"odd": true}}',
        *(400, ["'odd'"]),
    ),
    "unload what is not there": ("repository/models/nobody/unload", "", 404, ["'nobody'"]),
    "an index by a word": ("repository/index", '{"ready": "yes"}', 400, ["'ready' must be"]),
    "a region of a word": (
        "systemsharedmemory/region/r/register",
        '{"key": "/k", "byte_size": "1"}',
        *(400, ["'byte_size' must be"]),
    ),
    "a region of 2^63": (
        "systemsharedmemory/region/r/register",
        json.dumps({"key": "/k", "byte_size": 1 << 63}),
        *(400, ["between 0 and 2^63"]),
    ),
    "CUDA's memory": ("cudasharedmemory/region/r/register", "{}", 501, ["not offered"]),
    "a log elsewhere": ("logging", '{"log_file": "/etc/cron.d/x"}', 400, ["log_file is decided"]),
    "a log of an object": ("logging", '{"log_info": {}}', 400, ["'log_info' has a value"]),
    "a trace of nowhere": ("trace/setting", '{"color": "red"}', 400, ["'color' is not known"]),
    "a trace of one model": (f"models/{PREY}/trace/setting", "{}", 501, ["for all models"]),
    "schedules of nobody": ("models/nobody/schedule/again", "{}", 404, ["'nobody'"]),
    "a schedule of 0 rows": (
        f"models/{PREY}/schedule/again",
        '{"batch_size": 0}',
        *(400, ["'batch_size' is 0"]),
    ),
    "a schedule of 2^63 rows": (
        f"models/{PREY}/versions/1/schedule/again",
        json.dumps({"batch_size": 1 << 63}),
        *(400, ["'batch_size' is 9223372036854775808"]),
    ),
    "a schedule for a list": (
        f"models/{PREY}/schedule/again",
        '{"device": ["cpu"]}',
        *(400, ["'device' must be"]),
    ),
    "a pin to a list": (
        f"models/{PREY}/schedule/pin",
        '{"plan": ["cpu"]}',
        400,
        ["'plan' must be"],
    ),
    "a pin to a plan that is none": (
        f"models/{PREY}/schedule/pin",
        '{"plan": "../../etc/passwd"}',
        *(400, ["has no plan '../../etc/passwd'; plans: "]),
    ),
    "a pin of nobody": ("models/nobody/schedule/pin", '{"plan": "sequential"}', 404, ["'nobody'"]),
    "a schedule for no device": (
        f"models/{PREY}/schedule/again",
        '{"device": "../../cpu"}',
        *(400, ["../../cpu"]),
    ),
}
"""Path below ``/v2/`` of a POST, body, status and words of the message."""


def requests() -> Iterator[tuple[str, HttpRequest]]:
    for what, (data, words) in BODIES.items():
        yield f"infer: {what}", of_protocol(post(INFER, data, 400, words))
    for what, (data, words) in PREDICTIONS.items():
        yield f"predict: {what}", of_protocol(post(PREDICT, data, 400, words))
    of_version = post(f"/v1/models/{PREY}/versions/1:predict", "{}", 400, ["give 'instances'"])
    yield "predict: by a version", of_protocol(of_version)
    for what, (size, told) in SIZES.items():
        head = body(data=None, parameters={"binary_data_size": size})
        length = {LENGTH: str(len(head))}
        request = post(INFER, head + "\0" * 12, 400, told, **length)
        yield f"a binary size: {what}", of_protocol(request)
    length = {LENGTH: str(len(body()))}
    told = ["1 bytes after the JSON belong to no input"]
    yield "bytes of no input", of_protocol(post(INFER, body() + "\0", 400, told, **length))
    for what, (claimed, told) in LENGTHS.items():
        request = post(INFER, body(), 400, told, **{LENGTH: claimed})
        yield f"a length: {what}", of_protocol(request)
    for path, status in PATHS.items():
        yield f"GET {path[:60]}", get(path, status)
    for what, (path, data, status, words) in CHANGES.items():
        yield what, of_protocol(post(f"/v2/{path}", data, status, words))
    late = around(parameters={"timeout": 1})
    yield "a timeout of a microsecond", of_protocol(post(INFER, late, 504))
    yield from _encodings()
    yield from _heads()


def _encodings() -> Iterator[tuple[str, HttpRequest]]:
    whole = gzip.compress(body().encode())
    for what, data, encoding, status in (
        ("a right stream", whole, "gzip", 200),
        ("two streams", whole + whole, "gzip", 400),
        ("a bomb", BOMB, "gzip", 413),
        ("a bomb cut short", BOMB[:-9], "gzip", 413),
        ("half a stream", whole[:-9], "gzip", 400),
        ("a stream and more", whole + b"more", "gzip", 400),
        ("no stream", body().encode(), "gzip", 400),
        ("another encoding", body().encode(), "br", 415),
        ("two encodings", BOMB, "gzip, gzip", 415),
        ("an encoding of 5,000", b"{}", "x" * 5000, 415),
    ):
        request = post(INFER, data, status, Content_Encoding=encoding)
        yield f"encoded: {what}", of_protocol(request)


def _heads() -> Iterator[tuple[str, HttpRequest]]:
    begin = f"POST {INFER} HTTP/1.1\r\n".encode()
    for what, head, status in (
        ("10,000 headers", b"a: b\r\n" * 10_000, 431),
        ("a header of a megabyte", b"a: " + b"b" * (1 << 20) + b"\r\n", 431),
        ("two lengths", b"Content-Length: 2\r\nContent-Length: 3\r\n", 400),
        ("a length below 0", b"Content-Length: -1\r\n", 400),
        ("a length of 40 digits", b"Content-Length: " + b"9" * 40 + b"\r\n", 400),
        ("a length of 1 GB", b"Content-Length: 1000000000\r\n", 413),
        ("a length and chunks", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400),
        ("chunks that are none", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        ("a chunk of 2^64", b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", 400),
        ("another coding", b"Transfer-Encoding: chunked, identity\r\n", 400),
        ("a header of two lines", b"a: b\r\n c: d\r\n", 400),
        ("a name with a space", b"Content-Length : 2\r\n", 400),
        ("a NUL in a header", b"a: b\x00c\r\n", 400),
        ("two hosts", b"Host: a\r\nHost: b\r\n", 400),
    ):
        data = begin + b"Connection: close\r\n" + head + b"\r\n"
        yield f"head: {what}", HttpRequest(data, status)
    for origin in ("https://evil.example", "null", "http://[x", "http://a b"):
        told = ["another site"]
        yield f"head: from {origin}", of_protocol(post(INFER, body(), 403, told, Origin=origin))
    for what, status, headers in (
        ("from another page", 403, {"Sec_Fetch_Site": "cross-site"}),
        ("of 10,000 bytes", 200, {"X_Long": "x" * 10_000}),
    ):
        yield f"head: {what}", of_protocol(post(INFER, body(), status, **headers))
    yield "head: of 20,000 bytes", post(INFER, body(), 431, X_Long="x" * 20_000)
    for path, status in (
        ("models/nobody", 404),
        ("nothing", 404),
        (f"models/{PREY}/infer", 405),
        ("repository/index", 405),
        ("cudasharedmemory/status", 501),
    ):
        yield f"GET /v2/{path} by REST", of_protocol(get(f"/v2/{path}", status))
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        data = f"{method} {INFER} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()
        yield f"method {method}", HttpRequest(data, 405)
    for method in ("TRACE", "CONNECT", "BREW", "get", "GET" * 9999):
        data = f"{method} {INFER} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()
        yield (
            f"method {method[:9]}",
            HttpRequest(data, 405 if method in ("TRACE", "CONNECT") else 400),
        )
