"""OpenAPI document of the protocol's routes, made from the table of operations."""

import re
from collections.abc import Sequence
from typing import Any

from braid.server.servicers.rest.operations import INFER, PREDICT, Operation
from braid_client.tensors import DTYPES
from braid_client.version import __version__

Json = dict[str, Any]

_PARAMETERS: Json = {
    "type": "object",
    "additionalProperties": {"type": ["boolean", "integer", "number", "string"]},
}

_TENSOR: Json = {
    "name": {"type": "string"},
    "datatype": {"type": "string", "enum": list(DTYPES)},
    "shape": {"type": "array", "items": {"type": "integer", "format": "int64"}},
    "parameters": {"$ref": "#/components/schemas/parameters"},
    "data": {"type": "array", "items": {}},
}

_SCHEMAS: Json = {
    "parameters": _PARAMETERS,
    "tensor": {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": _TENSOR,
        "description": "Elements in `data`, flat or nested, or after the JSON: then the parameter "
        "`binary_data_size` gives their bytes.",
    },
    "requested_output": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "parameters": {"$ref": "#/components/schemas/parameters"},
        },
    },
    "inference_request": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string", "maxLength": 128},
            "parameters": {
                **_PARAMETERS,
                "properties": {
                    "timeout": {"type": "integer", "description": "microseconds"},
                    "priority": {"type": "integer", "minimum": 0, "maximum": 10},
                    "binary_data_output": {"type": "boolean"},
                },
            },
            "inputs": {"type": "array", "items": {"$ref": "#/components/schemas/tensor"}},
            "outputs": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/requested_output"},
            },
        },
    },
    "inference_response": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/tensor"}},
        },
    },
    "predict_request": {
        "type": "object",
        "description": "Rows in `instances`, or whole tensors in `inputs`: nested lists for the "
        "only input, or objects by the inputs' names.",
        "properties": {"instances": {"type": "array", "items": {}}, "inputs": {}},
    },
    "error": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
}

_HEAD_LENGTH: Json = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "Bytes of the JSON, if binary tensors follow it.",
    "schema": {"type": "integer"},
}

_BODIES = {INFER: "inference_request", PREDICT: "predict_request"}


def document(operations: Sequence[Operation]) -> Json:
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Braid: Open Inference Protocol v2",
            "version": __version__,
        },
        "paths": paths,
        "security": [{"token": []}, {}],
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> Json:
    is_inference = operation.form == INFER
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    answer: Json = {"type": "object"}
    if is_inference:
        parameters.append(_HEAD_LENGTH)
        answer = {"$ref": "#/components/schemas/inference_response"}
    described: Json = {
        "operationId": "_".join([operation.method.lower(), *re.findall(r"\w+", operation.path)]),
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "answer", "content": _content(answer, is_inference)},
            "default": {
                "description": "error",
                "content": _content({"$ref": "#/components/schemas/error"}, False),
            },
        },
    }
    body = _BODIES.get(operation.form)
    if body or operation.read is not None:
        schema = {"$ref": f"#/components/schemas/{body}"} if body else {"type": "object"}
        content = _content(schema, is_inference)
        described["requestBody"] = {"required": body is not None, "content": content}
    return described


def _content(schema: Json, is_binary: bool) -> Json:
    content: Json = {"application/json": {"schema": schema}}
    if is_binary:
        content["application/octet-stream"] = {"schema": {}}
    return content
