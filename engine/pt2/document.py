"""The JSON of a ``.pt2`` as data: inputs, weights, nodes with typed arguments, outputs.

Follows torch's export schema, major version 8 (``torch/_export/serde/schema.py``).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid.core.errors import ModelImportError
from braid.core.tensor import Dim, TensorType
from braid.engine.pt2.expressions import check_guard, symbol_name

SCHEMA_MAJOR = 8
MAX_NODES = 200_000
MAX_JSON_BYTES = 256 << 20

DTYPES: Mapping[int, str] = {
    1: "UINT8",
    2: "INT8",
    3: "INT16",
    4: "INT32",
    5: "INT64",
    6: "FP16",
    7: "FP32",
    8: "FP64",
    12: "BOOL",
    13: "BF16",
    28: "UINT16",
    34: "UINT32",
    35: "UINT64",
}
"""torch's ScalarType -> OIP name."""

_TARGET = re.compile(r"torch\.ops\.[a-z_]\w*\.\w+\.\w+|_operator\.\w+|math\.\w+|torch\.sym_\w+")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Argument that is a tensor, by its name in the graph."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """Argument that is a number computed from shapes, by its name in the graph."""

    name: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """Argument that is an element type."""

    name: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Argument that is a device, layout or memory format and does not change results."""

    what: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Argument of a kind that is not read; the use of its node is refused."""

    what: str


Argument = (
    None | bool | int | float | str | Tensor | Symbol | Dtype | Setting | Unknown | list["Argument"]
)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Node of the graph: an operator applied to named arguments."""

    target: str  # "aten.conv2d.default", "_operator.mul"
    arguments: Mapping[str, Argument]
    outputs: tuple[Argument, ...]  # tensors, symbols, lists of tensors

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all results, those in a list included; "" where there is none."""
        flat = [
            part
            for output in self.outputs
            for part in (output if isinstance(output, list) else [output])
        ]
        return tuple(part.name if isinstance(part, Tensor | Symbol) else "" for part in flat)


@dataclass(frozen=True, slots=True)
class ExportedProgram:
    """Exported program without the content of its weights."""

    inputs: Mapping[str, TensorType]
    weights: Mapping[str, str]  # name in the graph -> name of the weight
    calls: tuple[OperatorCall, ...]
    outputs: Mapping[str, str]  # name callers see -> tensor
    dtypes: Mapping[str, str]  # of all tensors
    shapes: Mapping[str, tuple[Dim, ...]]  # of all tensors, as the exporter saw them
    opset: int


def read_program(data: bytes | bytearray) -> ExportedProgram:
    """Read ``models/<name>.json``.

    Raises:
        ModelImportError: not JSON, another schema, over a budget, or text that hides code.
    """
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ModelImportError(f"the graph of the .pt2 is not JSON: {error}") from error
    try:
        return _program(document)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ModelImportError(f"the graph of the .pt2 is malformed: {error!r}") from error


def _program(document: Mapping[str, Any]) -> ExportedProgram:
    major = document["schema_version"]["major"]
    if major != SCHEMA_MAJOR:
        raise ModelImportError(
            f"the .pt2 has schema version {major}, only {SCHEMA_MAJOR} is read; export again "
            "with torch 2.9 or newer"
        )
    for guard in document.get("guards_code") or ():
        check_guard(str(guard))
    for extent in document.get("range_constraints") or ():
        symbol_name(str(extent))
    module = document["graph_module"]
    graph, signature = module["graph"], module["signature"]
    if len(graph["nodes"]) > MAX_NODES:
        raise ModelImportError(f"the graph has more than {MAX_NODES} nodes")
    values = graph["tensor_values"]
    for number in (*graph["sym_int_values"].values(), *graph["sym_bool_values"].values()):
        if "as_expr" in number:
            symbol_name(str(number["as_expr"]["expr_str"]))
    shapes = {str(name): _shape(str(name), meta) for name, meta in values.items()}
    inputs: dict[str, TensorType] = {}
    weights: dict[str, str] = {}
    for spec in signature["input_specs"]:
        _sort_input(spec, values, shapes, inputs, weights)
    outputs = [_output(spec) for spec in signature["output_specs"]]
    return ExportedProgram(
        inputs=inputs,
        weights=weights,
        calls=tuple(_call(node) for node in graph["nodes"]),
        outputs=_named(outputs, module.get("module_call_graph")),
        dtypes={str(name): _dtype(meta["dtype"]) for name, meta in values.items()},
        shapes=shapes,
        opset=int(document["opset_version"].get("aten", 0)),
    )


def _shape(name: str, meta: Mapping[str, Any]) -> tuple[Dim, ...]:
    """Extents; arithmetic with symbols gets a name of its own."""
    dims: list[Dim] = []
    for axis, size in enumerate(meta["sizes"]):
        if "as_int" in size:
            dims.append(int(size["as_int"]))
        else:
            symbol = symbol_name(str(size["as_expr"]["expr_str"]))
            dims.append(symbol or f"{name}.{axis}")
    return tuple(dims)


def _dtype(number: Any) -> str:
    return DTYPES.get(number, f"type {number}")


def _sort_input(
    spec: Mapping[str, Any],
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[Dim, ...]],
    inputs: dict[str, TensorType],
    weights: dict[str, str],
) -> None:
    match spec:
        case {"user_input": {"arg": {"as_tensor": {"name": str(name)}}}}:
            dtype = _dtype(values[name]["dtype"])
            if dtype not in DTYPES.values():
                raise ModelImportError(f"input {name!r} has element {dtype}, which Braid has not")
            inputs[name] = TensorType(dtype, shapes[name])
        case {"parameter": {"arg": {"name": str(name)}, "parameter_name": str(weight)}}:
            weights[name] = weight
        case {"buffer": {"arg": {"name": str(name)}, "buffer_name": str(weight)}}:
            weights[name] = weight
        case {"tensor_constant": {"arg": {"name": str(name)}, "tensor_constant_name": str(weight)}}:
            weights[name] = weight
        case {"constant_input": {"name": str(), "value": value}}:
            _argument(value)  # a fixed value: no node reads it by name
        case {"custom_obj": _}:
            raise ModelImportError("the model holds a custom object, which would have to be run")
        case _:
            kind = next(iter(spec), "nothing")
            raise ModelImportError(f"the model has an input of kind {kind!r}, not a tensor")


def _output(spec: Mapping[str, Any]) -> str:
    match spec:
        case {"user_output": {"arg": {"as_tensor": {"name": str(name)}}}}:
            return name
        case {"user_output": {"arg": argument}}:
            kind = next(iter(argument), "nothing")
            raise ModelImportError(f"the model returns a value of kind {kind!r}, not a tensor")
        case {"buffer_mutation": {"buffer_name": name}} | {
            "parameter_mutation": {"parameter_name": name}
        }:
            raise ModelImportError(f"the model changes its own state ({name!r}) when it runs")
        case {"user_input_mutation": {"user_input_name": name}}:
            raise ModelImportError(f"the model changes its input {name!r}")
    raise ModelImportError(f"the model has an output of kind {next(iter(spec), 'nothing')!r}")


def _named(outputs: Sequence[str], calls: Any) -> dict[str, str]:
    """Names for the outputs: the keys of the dictionaries that forward returns, else numbers."""
    names = ["output"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]
    try:
        spec = json.loads(calls[0]["signature"]["out_spec"])[1]
        paths = list(_paths(spec, ()))
    except (KeyError, TypeError, ValueError, IndexError, RecursionError):
        paths = []
    if len(paths) == len(outputs) and all(paths):
        named = [itertools.dropwhile(str.isdigit, path) for path in paths]  # places in a tuple
        keys = ["_".join(path) for path in named]
        names = [key or name for key, name in zip(keys, names, strict=True)]
    if len(set(names)) != len(names):
        names = [f"output_{i}" for i in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))


def _paths(spec: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    children = spec["children_spec"]
    if spec["type"] is None:
        yield path
        return
    keys = [str(i) for i in range(len(children))]
    if spec["type"] == "builtins.dict":
        keys = [str(key) for key in json.loads(spec["context"])]
    for key, child in zip(keys, children, strict=True):
        yield from _paths(child, (*path, key))


def _call(node: Mapping[str, Any]) -> OperatorCall:
    target = str(node["target"])
    if not _TARGET.fullmatch(target):
        raise ModelImportError(f"the graph calls {target[:100]!r}, which is no operator of torch")
    arguments: dict[str, Argument] = {}
    for given in node["inputs"]:
        name = str(given["name"])
        if name in arguments:
            raise ModelImportError(f"{target} is given {name!r} twice")
        arguments[name] = _argument(given["arg"])
    return OperatorCall(
        target.removeprefix("torch.ops."),
        arguments,
        tuple(_argument(output) for output in node["outputs"]),
    )


def _argument(given: Mapping[str, Any]) -> Argument:
    if len(given) != 1:
        raise ModelImportError("an argument of the graph has several values")
    ((kind, value),) = given.items()
    match kind, value:
        case "as_none", _:
            return None
        case "as_tensor", {"name": str(name)}:
            return Tensor(name)
        case "as_optional_tensor", dict():
            return _argument(value)
        case "as_tensors", list():
            return [Tensor(str(item["name"])) for item in value]
        case "as_optional_tensors", list():
            return [_argument(item) for item in value]
        case "as_float", ("Infinity" | "-Infinity" | "NaN"):
            return float(value)
        case (
            ("as_int" | "as_float" | "as_string" | "as_bool"),
            (bool() | int() | float() | str()),
        ):
            return value
        case (("as_ints" | "as_floats" | "as_strings" | "as_bools"), list()):
            return [item for item in value if isinstance(item, bool | int | float | str)]
        case (("as_sym_int" | "as_sym_float" | "as_sym_bool"), dict()):
            return _symbolic(value)
        case (("as_sym_ints" | "as_sym_floats" | "as_sym_bools"), list()):
            return [_symbolic(item) for item in value]
        case "as_scalar_type", int():
            return Dtype(_dtype(value))
        case (("as_memory_format" | "as_layout" | "as_device"), _):
            return Setting(kind)
    return Unknown(kind)


def _symbolic(given: Mapping[str, Any]) -> Argument:
    match given:
        case {"as_name": str(name)}:
            return Symbol(name)
        case {"as_int": int(number)} | {"as_float": float(number)} | {"as_bool": bool(number)}:
            return number
    raise ModelImportError(f"not a number: {str(given)[:100]}")
