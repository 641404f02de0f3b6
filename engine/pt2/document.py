"""The JSON of a ``.pt2``, checked before torch interprets it, and without what torch would run.

    models/<name>.json ──read_program──> Program: document, weights by their use, names of outputs

Follows torch's export schema, major version 8 (``torch/_export/serde/schema.py``). torch turns
operators' names into attributes of modules, extents into sympy expressions, names into source code,
and trees of arguments into classes that it imports. So operators are of ``aten`` or on a list,
extents are arithmetic and names are identifiers; guards, devices, trees, sample inputs and what
only debuggers read are left out.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.engine.pt2.expressions import check_guard, symbol_name

SCHEMA_MAJOR = 8
MAX_NODES = 200_000
MAX_JSON_BYTES = 256 << 20
OPERATORS_PAGE = "docs/pt2-operators.md"

_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos")
_LOGIC = ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "lshift", "rshift")
FUNCTIONS = frozenset(
    {
        *(f"_operator.{name}" for name in (*_ARITHMETIC, *_LOGIC)),
        *(f"torch.sym_{name}" for name in ("int", "float", "max", "min", "not", "ite", "sqrt")),
        "math.trunc",
        *("torch.ops.higher_order.cond", "torch.ops.higher_order.wrap_with_autocast"),
        "torch.ops.higher_order.wrap_with_set_grad_enabled",
    }
)
"""What a graph may call besides aten: arithmetic with extents, and operators that take graphs."""

_ATEN = re.compile(r"torch\.ops\.aten\.(?!__init|__class|__get|__set|__del)\w+\.(?!__)\w+")
_OPERATOR = re.compile(r"torch\.ops(\.\w+){2,3}|_operator\.\w+|math\.\w+|torch\.sym_\w+")
_WEIGHT = re.compile(r"[\w.:/ -]+")
_BY_NAME = frozenset(
    {
        *("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"),
        *("custom_obj_values", "as_string_to_argument"),
    }
)
_CPU = {"type": "cpu", "index": None}


@dataclass(slots=True)
class Weights:
    """Names of weights in the file, by how the module holds them."""

    parameters: set[str] = field(default_factory=set)
    buffers: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)  # buffers that are not of the state, too

    @property
    def names(self) -> set[str]:
        return self.parameters | self.buffers | self.constants


@dataclass(frozen=True, slots=True)
class Program:
    """Exported program without the content of its weights."""

    document: dict[str, Any]  # in torch's schema
    weights: Weights
    arguments: int  # constants included
    inputs: tuple[str, ...]  # names of the arguments that are tensors
    outputs: tuple[str, ...]  # names callers see, of the results that are computed
    fixed: Mapping[str, Any]  # results that are numbers or texts of the file
    opset: int


def read_program(data: bytes | bytearray) -> Program:
    """Raises ``ModelImportError``, also for another schema or text that hides code."""
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ModelImportError(f"the graph of the .pt2 is not JSON: {error}") from error
    try:
        return _program(document)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ModelImportError(f"the graph of the .pt2 is malformed: {error!r}") from error


def _program(document: Mapping[str, Any]) -> Program:
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
    signature = module["signature"]
    weights = Weights()
    given = [name for s in signature["input_specs"] if (name := _input(s, weights)) is not None]
    results = [_result(spec) for spec in signature["output_specs"]]
    names = _names(results, module.get("module_call_graph"))
    computed = [result is _COMPUTED for result in results]
    if not any(computed):
        raise ModelImportError("the model returns no tensor")
    graph, ends = _plain(module["graph"]), _plain(signature)
    graph["outputs"] = list(itertools.compress(graph["outputs"], computed))
    ends["output_specs"] = list(itertools.compress(ends["output_specs"], computed))
    plain = {"graph": graph, "signature": ends, "module_call_graph": []}
    return Program(
        document={
            "graph_module": plain,
            "opset_version": document["opset_version"],
            "range_constraints": document.get("range_constraints") or {},
            "schema_version": document["schema_version"],
            "verifiers": ["TRAINING"],
        },
        weights=weights,
        arguments=len(given),
        inputs=tuple(filter(None, given)),
        outputs=tuple(itertools.compress(names, computed)),
        fixed={
            name: result
            for name, result in zip(names, results, strict=True)
            if result is not _COMPUTED and result is not None
        },
        opset=int(document["opset_version"].get("aten", 0)),
    )


def _input(spec: Mapping[str, Any], weights: Weights) -> str | None:
    """Name of a tensor that callers give, "" for a constant in its place; None: a weight."""
    match spec:
        case {"user_input": {"arg": {"as_tensor": {"name": str(name)}}}}:
            return name
        case {"parameter": {"parameter_name": str(name)}}:
            weights.parameters.add(_weight(name))
        case {"buffer": {"buffer_name": str(name), "persistent": persistent}}:
            (weights.buffers if persistent else weights.constants).add(_weight(name))
        case {"tensor_constant": {"tensor_constant_name": str(name)}}:
            weights.constants.add(_weight(name))
        case {"constant_input": {"name": str(), "value": _}}:
            return ""
        case {"custom_obj": _}:
            raise ModelImportError("the model holds a custom object, which would have to be run")
        case _:
            kind = next(iter(spec), "nothing")
            raise ModelImportError(f"the model has an input of kind {kind!r}, not a tensor")
    return None


def _weight(name: str) -> str:
    if not _WEIGHT.fullmatch(name):
        raise ModelImportError(f"a weight has the name {name[:100]!r}, which no module gives")
    return name


_COMPUTED = object()


def _result(spec: Mapping[str, Any]) -> Any:
    """Value of a result that the file states, or ``_COMPUTED``."""
    match spec:
        case {"user_output": {"arg": {"as_tensor": {"name": str()}}}}:
            return _COMPUTED
        case {"user_output": {"arg": {"as_sym_int": {"as_name": str()}}}}:
            return _COMPUTED
        case {"user_output": {"arg": {"as_none": _}}}:
            return None
        case {
            "user_output": {
                "arg": {"as_int": value}
                | {"as_float": value}
                | {"as_bool": value}
                | {"as_string": value}
            }
        }:
            return value
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


def _names(results: Sequence[Any], calls: Any) -> list[str]:
    """Names of results: the keys of the dictionaries that forward returns, else numbers."""
    names = ["output"] if len(results) == 1 else [f"output_{i}" for i in range(len(results))]
    try:
        spec = json.loads(calls[0]["signature"]["out_spec"])[1]
        paths = list(_paths(spec, ()))
    except (KeyError, TypeError, ValueError, IndexError, RecursionError):
        paths = []
    if len(paths) == len(results) and all(paths):
        named = [itertools.dropwhile(str.isdigit, path) for path in paths]  # places in a tuple
        keys = ["_".join(path) for path in named]
        names = [key or name for key, name in zip(keys, names, strict=True)]
    if len(set(names)) != len(names):
        names = [f"output_{i}" for i in range(len(results))]
    return names


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


def _plain(value: Any) -> Any:
    """Copy of a part of the document that torch may interpret."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _entry(key, item) for key, item in value.items()}
    return value


def _entry(key: str, value: Any) -> Any:
    match key, value:
        case (("device" | "as_device"), _):
            return _CPU
        case "metadata", _:
            return {}
        case "expr_str", _:
            symbol_name(str(value))
        case (("name" | "as_name"), str()) if value and not value.isidentifier():
            raise ModelImportError(f"the graph names a value {value[:100]!r}, no identifier")
        case "as_operator", _:
            raise ModelImportError(f"the graph hands over the operator {str(value)[:100]!r}")
        case "as_custom_obj", _:
            raise ModelImportError("the model holds a custom object, which would have to be run")
        case "nodes", list():
            _check_targets([str(node["target"]) for node in value])
        case _, dict() if key in _BY_NAME:
            return {name: _plain(item) for name, item in value.items()}
    return _plain(value)


def _check_targets(targets: Sequence[str]) -> None:
    if len(targets) > MAX_NODES:
        raise ModelImportError(f"the graph has more than {MAX_NODES} nodes")
    for target in targets:
        if not _OPERATOR.fullmatch(target):
            shown = f"the graph calls {target[:100]!r}"
            raise ModelImportError(f"{shown}, which is no operator of torch")
    foreign = {t for t in targets if not _ATEN.fullmatch(t) and t not in FUNCTIONS}
    if foreign:
        raise UnsupportedOperators(
            tuple(f"{t[:100]}: not in the allow-list" for t in sorted(foreign)), OPERATORS_PAGE
        )
