"""``.pt2`` files an attacker might upload. Each payload would write a marker file if anything ran.

Made from a sound file by changing one thing, so that this thing is what is refused.
"""

from __future__ import annotations

import io
import json
import pickle
import stat
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.pt2.programs import save

Files = dict[str, bytes]
HUGE = 1 << 38


class Payload:
    """Writes the marker when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return exec, (self.code(),)

    def code(self) -> str:
        return f"open({str(self.marker)!r}, 'w').write('it ran')"

    def expression(self) -> str:
        return f"__import__('pathlib').Path({str(self.marker)!r}).write_text('it ran')"


class Sound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 4)
        self.scale = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)).view(x.shape[0], 2, 2) * self.scale[:2]


@cache
def sound(folder: Path) -> Mapping[str, bytes]:
    """The files of a sound archive, without its top folder."""
    path = save(Sound(), [torch.randn(3, 4)], folder / "sound.pt2")
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(f"sound/{name}", data)
    return target.getvalue()


MODEL = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def edited(name: str, change: Callable[[Any], None]) -> Callable[[Files, Payload], None]:
    """A change of one JSON file."""

    def edit(files: Files, _: Payload) -> None:
        document = json.loads(files[name])
        change(document)
        files[name] = json.dumps(document).encode()

    return edit


def graph(change: Callable[[Any], None]) -> Callable[[Files, Payload], None]:
    return edited(MODEL, lambda document: change(document["graph_module"]["graph"]))


def weight(**changes: Any) -> Callable[[Files, Payload], None]:
    """Another description of the linear's weight."""

    def change(document: Any) -> None:
        entry = document["config"]["linear.weight"]
        for key, value in changes.items():
            (entry if key in entry else entry["tensor_meta"])[key] = value

    return edited(WEIGHTS, change)


def ints(*values: int) -> list[dict[str, int]]:
    return [{"as_int": value} for value in values]


def saved(content: object) -> bytes:
    """What torch.save writes."""
    inner = io.BytesIO()
    torch.save(content, inner)
    return inner.getvalue()


def pickled_weights(files: Files, payload: Payload) -> None:
    document = json.loads(files[WEIGHTS])
    document["config"]["linear.weight"]["use_pickle"] = True
    files[WEIGHTS] = json.dumps(document).encode()
    files["data/weights/weight_0"] = saved(payload)


def opaque_constant(files: Files, payload: Payload) -> None:
    document = json.loads(files[CONSTANTS])
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}
    document["config"]["thing"] = {**entry, "tensor_meta": None}
    files[CONSTANTS] = json.dumps(document).encode()
    files["data/constants/opaque_obj_0"] = pickle.dumps(payload)


def custom_object(files: Files, payload: Payload) -> None:
    def change(document: Any) -> None:
        spec = {"arg": {"name": "obj", "class_fqn": "os.system"}, "custom_obj_name": "obj"}
        document["graph_module"]["signature"]["input_specs"].append({"custom_obj": spec})

    edited(MODEL, change)(files, payload)


def expression_in_shape(files: Files, payload: Payload) -> None:
    document = json.loads(files[MODEL])
    size = document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]
    size["as_expr"]["expr_str"] = payload.expression()
    files[MODEL] = json.dumps(document).encode()


def expression_in_symbol(files: Files, payload: Payload) -> None:
    document = json.loads(files[MODEL])
    (number,) = document["graph_module"]["graph"]["sym_int_values"].values()
    number["as_expr"]["expr_str"] = f"Symbol({payload.expression()})"
    files[MODEL] = json.dumps(document).encode()


def expression_in_range(files: Files, payload: Payload) -> None:
    document = json.loads(files[MODEL])
    document["range_constraints"][payload.expression()] = {"min_val": 1, "max_val": 2}
    files[MODEL] = json.dumps(document).encode()


def guard(files: Files, payload: Payload) -> None:
    document = json.loads(files[MODEL])
    document["guards_code"] = [f"L['x'].size()[0] > 0 and {payload.expression()}"]
    files[MODEL] = json.dumps(document).encode()


def hidden_guard(files: Files, payload: Payload) -> None:
    """Through attributes of what a guard may name."""
    document = json.loads(files[MODEL])
    document["guards_code"] = ["L.__class__.__base__.__subclasses__()"]
    files[MODEL] = json.dumps(document).encode()


def name_of_a_value(files: Files, payload: Payload) -> None:
    """torch writes names into the source of a forward function."""

    def change(g: Any) -> None:
        g["nodes"][-1]["outputs"][0]["as_tensor"]["name"] = f"y = {payload.expression()}; y"

    graph(change)(files, payload)


def name_of_a_weight(files: Files, payload: Payload) -> None:
    def change(document: Any) -> None:
        for spec in document["graph_module"]["signature"]["input_specs"]:
            if "parameter" in spec:
                spec["parameter"]["parameter_name"] = f'a" + {payload.expression()} + "'

    edited(MODEL, change)(files, payload)


def expression_in_stride(files: Files, payload: Payload) -> None:
    def change(g: Any) -> None:
        stride = {"as_expr": {"expr_str": payload.expression(), "hint": None}}
        g["tensor_values"]["x"]["strides"][0] = stride

    graph(change)(files, payload)


def operator_as_argument(g: Any) -> None:
    g["nodes"][-1]["inputs"][-1]["arg"] = {"as_operator": "torch.hub.load"}


def compiled_library(files: Files, payload: Payload) -> None:
    files["data/aotinductor/sound/sound.wrapper.so"] = b"\x7fELF" + b"\0" * 100


def compiled_source(files: Files, payload: Payload) -> None:
    files["extra/sound.cpp"] = b"int main() { return 0; }"


def target(name: str) -> Callable[[Files, Payload], None]:
    return graph(lambda g: g["nodes"][-1].update(target=name))


def no_weight(files: Files, payload: Payload) -> None:
    del files["data/weights/weight_0"]


def second_root(files: Files, payload: Payload) -> None:
    files["../../outside"] = b"x"


def fill_of_2_38(g: Any) -> None:
    g["nodes"][-1]["target"] = "torch.ops.aten.full.default"
    g["nodes"][-1]["inputs"] = [
        {"name": "size", "arg": {"as_ints": [1 << 19, 1 << 19]}, "kind": 1},
        {"name": "fill_value", "arg": {"as_float": 1.0}, "kind": 1},
    ]


def cycle(g: Any) -> None:
    last = g["nodes"][-1]["outputs"][0]
    g["nodes"][0]["inputs"][0]["arg"] = last


def twice(g: Any) -> None:
    g["nodes"].append(g["nodes"][0])


def nothing_before(g: Any) -> None:
    g["nodes"][-1]["inputs"][0]["arg"] = {"as_tensor": {"name": "ghost"}}


def deep(files: Files, payload: Payload) -> None:
    files[MODEL] = b"[" * 200_000


Change = Callable[[Files, Payload], None]
CHANGES: Mapping[str, tuple[Change, str]] = {
    "pickled weights": (pickled_weights, "stored as a pickle"),
    "an opaque constant": (opaque_constant, "opaque object"),
    "a custom object": (custom_object, "custom object"),
    "code as an extent": (expression_in_shape, "is code, not arithmetic"),
    "code as a symbol": (expression_in_symbol, "is code, not arithmetic"),
    "code as a range": (expression_in_range, "is code, not arithmetic"),
    "code as a guard": (guard, "is code, not arithmetic"),
    "attributes in a guard": (hidden_guard, "is code, not arithmetic"),
    "code as a stride": (expression_in_stride, "is code, not arithmetic"),
    "code as a name": (name_of_a_value, "no identifier"),
    "code as a weight": (name_of_a_weight, "which no module gives"),
    "an operator as argument": (graph(operator_as_argument), "hands over the operator"),
    "a method of an operator": (target("torch.ops.aten.__class__.mro"), "not in the allow-list"),
    "a loader": (target("torch.hub.load"), "no operator of torch"),
    "a compiled library": (compiled_library, "compiled code"),
    "source code": (compiled_source, "compiled code"),
    "a foreign operator": (target("torch.ops.evil.run.default"), "not in the allow-list"),
    "a function": (target("os.system"), "no operator of torch"),
    "an attribute getter": (target("_operator.attrgetter"), "not in the allow-list"),
    "an unknown operator": (target("torch.ops.aten.unique_dim.default"), "torch cannot read"),
    "a short storage": (lambda f, _: f.update({"data/weights/weight_0": b"1234"}), "needs 64 byt"),
    "a lying size": (weight(sizes=ints(HUGE, 4)), "needs"),
    "overflowing sizes": (weight(sizes=ints(1 << 62, 1 << 62)), "needs"),
    "a negative size": (weight(sizes=ints(-4, 4)), "not a plain strided tensor"),
    "a negative stride": (weight(strides=ints(-4, 1)), "not a plain strided tensor"),
    "a far offset": (weight(storage_offset={"as_int": HUGE}), "needs"),
    "a negative offset": (weight(storage_offset={"as_int": -8}), "not a plain strided tensor"),
    "overlapping strides": (weight(sizes=ints(HUGE, 4), strides=ints(0, 0)), "needs"),
    "a weight outside": (weight(path_name="../../../etc/passwd"), "outside its folder"),
    "a type that is none": (weight(dtype=99), "an element type that is not read"),
    "no weight": (no_weight, "no file"),
    "a fill of 2^38": (graph(fill_of_2_38), "bytes"),
    "a cycle": (graph(cycle), "not produced before it is read"),
    "a value made twice": (graph(twice), "twice"),
    "a value never made": (graph(nothing_before), "not produced before it is read"),
    "an old schema": (edited(MODEL, lambda d: d["schema_version"].update(major=7)), "version 7"),
    "no graph": (edited(MODEL, lambda d: d.pop("graph_module")), "malformed"),
    "deep JSON": (deep, "not JSON"),
    "two models": (lambda f, _: f.update({"models/b.json": b"{}"}), "2 models"),
    "big endian": (lambda f, _: f.update({"byteorder": b"big"}), "byteorder"),
    "a path that leaves": (second_root, "leaves it"),
}


def attack(name: str, marker: Path, folder: Path) -> bytes:
    files = dict(sound(folder))
    CHANGES[name][0](files, Payload(marker))
    return packed(files)


def bomb() -> bytes:
    """A thousand times its size."""
    return packed({MODEL: b"\0" * (200 << 20)}, zipfile.ZIP_DEFLATED)


def link(target: str) -> bytes:
    """A zip whose data file is a symbolic link."""
    packed_file = io.BytesIO()
    with zipfile.ZipFile(packed_file, "w") as archive:
        archive.writestr("model.onnx", b"")
        entry = zipfile.ZipInfo("w.bin")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, target)
    return packed_file.getvalue()
