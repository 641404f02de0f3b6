"""RepositoryModelLoad's parameters: a model's files and its configuration.

    config                     JSON of a ModelConfig
    file:<version>/<name>      the model file of one version

Of the configuration is used what Braid can do: batch sizes. What would make a model behave
otherwise than it would is refused by name, so that nobody waits for what does not happen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from core.errors import InvalidRequest
from server.servicers.oip.describe import BACKEND, PLATFORM
from server.servicers.oip.wire import config as wire
from server.store.records import RegistrationOptions

_FILE = re.compile(r"file:([1-9][0-9]{0,8})/([^/\x00]{1,255})")
_PLATFORMS = ("", PLATFORM, "onnxruntime_onnx")
_BACKENDS = ("", BACKEND, "onnxruntime")

# Fields that say nothing about how the model behaves here, or that are read below.
_KNOWN_FIELDS = frozenset(
    {
        "name",
        "platform",
        "backend",
        "runtime",
        "max_batch_size",
        "input",
        "output",
        "dynamic_batching",
        "default_model_filename",
        "metric_tags",
        "parameters",
        "optimization",
    }
)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a load asks for."""

    files: Mapping[int, bytes]  # version -> model file
    options: RegistrationOptions | None  # None: no configuration was given


def load_request(model: str, parameters: Mapping[str, Any]) -> LoadRequest:
    """Read the parameters.

    Raises:
        InvalidRequest: one is unknown, of the wrong type, or asks for what is not done here.
    """
    files: dict[int, bytes] = {}
    options = None
    for name in parameters:
        which = parameters[name].WhichOneof("parameter_choice")
        if name == "config":
            if which != "string_param":
                raise InvalidRequest("parameter 'config' must be a string, the JSON of a config")
            options = options_of(model, parameters[name].string_param)
            continue
        found = _FILE.fullmatch(name)
        if found is None or which != "bytes_param":
            raise InvalidRequest(
                f"parameter {name[:100]!r} is not known; there are 'config' (a string) and "
                "'file:<version>/<name>' (bytes), e.g. 'file:1/model.onnx'"
            )
        if int(found[1]) in files:
            raise InvalidRequest(f"version {found[1]} has two files; send one model file each")
        files[int(found[1])] = parameters[name].bytes_param
    return LoadRequest(files, options)


def options_of(model: str, text: str) -> RegistrationOptions:
    """What a ModelConfig in JSON asks to schedule.

    Batch sizes are the preferred ones, the largest, and 1.

    Raises:
        InvalidRequest: it does not parse, is of another model, or asks for what is not done.
    """
    parsed = wire.ModelConfig()
    try:
        json_format.Parse(text, parsed)
    except (json_format.ParseError, RecursionError) as error:
        raise InvalidRequest(f"the config is not the JSON of a ModelConfig: {error}") from None
    unknown = [f.name for f, _ in parsed.ListFields() if f.name not in _KNOWN_FIELDS]
    if unknown:
        raise InvalidRequest(f"the config asks for {', '.join(unknown)}: not offered here")
    if parsed.name not in ("", model):
        raise InvalidRequest(f"the config is of model {parsed.name!r}, the request of {model!r}")
    if parsed.platform not in _PLATFORMS or parsed.backend not in _BACKENDS:
        raise InvalidRequest(
            f"platform {parsed.platform!r} with backend {parsed.backend!r} is not served here; "
            f"leave both out, or say {PLATFORM!r} and {BACKEND!r}"
        )
    sizes = {1, max(1, parsed.max_batch_size), *parsed.dynamic_batching.preferred_batch_size}
    return RegistrationOptions(batch_sizes=tuple(sizes))
