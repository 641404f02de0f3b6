"""Messages of the protocol as JSON, and JSON as messages.

Written by hand where ``protobuf.json_format`` differs from Triton's form: integers of 64 bits are
numbers, not strings, and nothing is left out because it is zero.
"""

import base64
import binascii
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from braid.core.errors import InvalidRequest
from braid.core.pieces import PIECE_BYTES, Work, joined
from braid.server.servicers.oip.parameters import value_of

_PREFIX = "_param"


def to_json(message: Any) -> dict[str, Any]:
    """Return a message for JSON; messages within it that are not set are left out."""
    shown: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        is_single = field.message_type is not None and not field.is_repeated
        if (is_single or field.containing_oneof) and not message.HasField(field.name):
            continue
        shown[field.name] = _shown(field, getattr(message, field.name))
    return shown


def _shown(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_value = kind.fields_by_name["value"]
        return {key: _one(of_value, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_one(field, item) for item in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return value_of(value) if "parameter_choice" in _oneofs(value) else to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _oneofs(message: Any) -> Any:
    return message.DESCRIPTOR.oneofs_by_name


def set_parameter(name: str, value: object, message: Any) -> None:
    """Set a parameter from JSON.

    Raises InvalidRequest: the protocol has no parameters of such a value.
    """
    fields = _oneofs(message)["parameter_choice"].fields
    for field in fields:
        wanted = _PYTHON[field.name.removesuffix(_PREFIX)]
        if type(value) is not wanted:
            continue
        try:
            setattr(message, field.name, value)
        except ValueError:
            continue  # an integer that has not enough bits
        return
    raise InvalidRequest(f"parameter {name[:100]!r} has a value that is not offered")


_PYTHON = {
    "bool": bool,
    "int64": int,
    "uint64": int,
    "uint32": int,
    "double": float,
    "string": str,
    "bytes": bytes,
}
"""Kind of a parameter in a message -> type of its value from JSON."""


def parameters_of(given: dict[str, Any], where: str = "the request") -> dict[str, Any]:
    """Return the member ``parameters`` without those that are null, as MLServer's client writes.

    Raises InvalidRequest: it is no object.
    """
    parameters = given.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"'parameters' of {where} is no object")
    return {name: value for name, value in parameters.items() if value is not None}


def read_index(given: dict[str, Any], message: Any) -> None:
    message.ready = _typed(given, "ready", bool, False)


def read_load(given: dict[str, Any], message: Any) -> Work[None]:
    """Fill a request to load or unload; files are in base64."""
    for name, value in parameters_of(given).items():
        if name.startswith("file:") and isinstance(value, str):
            try:
                value = yield from _from_base64(value)
            except (binascii.Error, ValueError):
                raise InvalidRequest(f"parameter {name[:100]!r} is not base64") from None
        set_parameter(name, value, message.parameters[name])


def _from_base64(text: str) -> Work[bytes]:
    if text.find("=", 0, len(text) - 2) >= 0:
        raise ValueError
    parts = []
    for at in range(0, len(text), PIECE_BYTES):
        if at:
            yield
        parts.append(base64.b64decode(text[at : at + PIECE_BYTES], validate=True))
    return (yield from joined(parts))


def read_schedule_again(given: dict[str, Any], message: Any) -> None:
    """Fill a ScheduleAgainRequest; without a batch size or device, of all."""
    message.device = _typed(given, "device", str, "")
    size = _typed(given, "batch_size", int, 0)
    if "batch_size" in given and not 0 < size < 2**31:
        raise InvalidRequest(f"'batch_size' is {size}; give 1 or more, or leave it out for all")
    message.batch_size = size


def read_pin_plan(given: dict[str, Any], message: Any) -> None:
    """Fill a PinPlanRequest; an empty plan lets requests decide again."""
    message.plan = _typed(given, "plan", str, "")


def read_region(given: dict[str, Any], message: Any) -> None:
    message.key = _typed(given, "key", str, "")
    for name in ("offset", "byte_size"):
        value = _typed(given, name, int, 0)
        if not 0 <= value < 2**63:
            raise InvalidRequest(f"{name!r} is {value}; it lies between 0 and 2^63")
        setattr(message, name, value)


def read_log_settings(given: dict[str, Any], message: Any) -> None:
    for name, value in given.items():
        setting = message.settings[name]
        if value is not None:
            set_parameter(name, value, setting)


def read_trace_settings(given: dict[str, Any], message: Any) -> None:
    """Fill a TraceSettingRequest; null: as at the start."""
    for name, value in given.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        message.settings[name].value.extend(map(str, values))


def _typed(given: dict[str, Any], name: str, wanted: type, missing: Any) -> Any:
    value = given.get(name, missing)
    if type(value) is not wanted:
        raise InvalidRequest(f"{name!r} must be of type {wanted.__name__}")
    return value
