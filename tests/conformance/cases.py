"""The cases: node cases from the package's generators, the others from the files it ships."""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "light")
WHOLE = "(several)"  # a model of several operators
_DATA = Path(onnx.__file__).parent / "backend/test/data"

DataSet = tuple[Sequence[Any], Sequence[Any]]  # inputs, expected outputs


@dataclass(frozen=True)
class Case:
    """One model with inputs, and the outputs that onnx expects."""

    name: str
    kind: str
    operator: str  # the one under test
    rtol: float
    atol: float
    model: bytes = field(repr=False)
    data_sets: Sequence[DataSet] = field(repr=False)


def load_cases(kinds: Sequence[str] = KINDS) -> list[Case]:
    """All cases of these kinds, by name; some seconds for the node cases."""
    found: list[Case] = []
    for kind in kinds:
        if kind == "node":
            found += _node_cases()
        elif kind == "light":
            found += map(_light_case, sorted((_DATA / "light").glob("*.onnx")))
        else:
            folders = sorted(path for path in (_DATA / kind).iterdir() if path.is_dir())
            found += (_folder_case(folder, kind) for folder in folders)
    return sorted(found, key=lambda case: (KINDS.index(case.kind), case.name))


def _node_cases() -> Iterator[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators overflow on purpose
        collected = list(collect_testcases(None))
    models = {case.name: case.model for case in collected if case.model is not None}
    plain = {n: m.graph.node[0].op_type for n, m in models.items() if len(m.graph.node) == 1}
    for case in collected:
        base = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
        yield Case(
            case.name,
            "node",
            plain.get(base) or plain.get(case.name) or WHOLE,
            case.rtol,
            case.atol,
            models[case.name].SerializeToString(),
            case.data_sets or (),
        )


def _folder_case(folder: Path, kind: str) -> Case:
    model = onnx.load(folder / "model.onnx")
    data_sets = [
        (
            _protos(data_set, "input", [info.type for info in model.graph.input]),
            _protos(data_set, "output", [info.type for info in model.graph.output]),
        )
        for data_set in sorted(folder.glob("test_data_set_*"))
    ]
    return Case(folder.name, kind, _only(model), 1e-3, 1e-7, model.SerializeToString(), data_sets)


def _light_case(path: Path) -> Case:
    """Inputs as the package's own runner makes them, the output as it ships it."""
    model = onnx.load(path)
    given = {proto.name for proto in model.graph.initializer}
    inputs = [
        Runner.generate_dummy_data(info) for info in model.graph.input if info.name not in given
    ]
    expected = onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))
    data_sets = [(inputs, [numpy_helper.to_array(expected)])]
    return Case(path.stem, "light", WHOLE, 1e-3, 1e-7, model.SerializeToString(), data_sets)


def _protos(folder: Path, role: str, types: Sequence[onnx.TypeProto]) -> list[Any]:
    """Numpy arrays; protos of sequences and optionals as they are."""
    found: list[Any] = []
    for index in range(len(list(folder.glob(f"{role}_*.pb")))):
        data = (folder / f"{role}_{index}.pb").read_bytes()
        if types[index].HasField("tensor_type"):
            found.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
        else:
            found.append(types[index])
    return found


def _only(model: onnx.ModelProto) -> str:
    names = {node.op_type for node in model.graph.node} - {"Constant"}
    return names.pop() if len(names) == 1 else WHOLE
