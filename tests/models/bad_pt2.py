"""``.pt2`` files an attacker might upload. Each payload would write a marker file if anything ran.

Made from a sound file by changing one thing, so that this thing is what is refused.
"""

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


Change = Callable[[Files, Payload], object]
Edit = Callable[[Any, Payload], object]


def edited(name: str, edit: Edit) -> Change:
    """A change of one JSON file."""

    def change(files: Files, payload: Payload) -> None:
        document = json.loads(files[name])
        edit(document, payload)
        files[name] = json.dumps(document).encode()

    return change


def model(edit: Edit) -> Change:
    return edited(MODEL, edit)


def graph(edit: Edit) -> Change:
    return edited(MODEL, lambda d, payload: edit(d["graph_module"]["graph"], payload))


def weight(**changes: Any) -> Change:
    def edit(document: Any, _: Payload) -> None:
        entry = document["config"]["linear.weight"]
        for key, value in changes.items():
            (entry if key in entry else entry["tensor_meta"])[key] = value

    return edited(WEIGHTS, edit)


def ints(*values: int) -> list[dict[str, int]]:
    return [{"as_int": value} for value in values]


def saved(content: object) -> bytes:
    inner = io.BytesIO()
    torch.save(content, inner)
    return inner.getvalue()


def file(name: str, content: bytes) -> Change:
    return lambda files, _: files.update({name: content})


def pickled_weights(files: Files, payload: Payload) -> None:
    weight(use_pickle=True)(files, payload)
    files["data/weights/weight_0"] = saved(payload)


def opaque_constant(files: Files, payload: Payload) -> None:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}
    thing = {**entry, "tensor_meta": None}
    edited(CONSTANTS, lambda d, _: d["config"].update(thing=thing))(files, payload)
    files["data/constants/opaque_obj_0"] = pickle.dumps(payload)


def custom_object(document: Any, _: Payload) -> None:
    spec = {"arg": {"name": "obj", "class_fqn": "os.system"}, "custom_obj_name": "obj"}
    document["graph_module"]["signature"]["input_specs"].append({"custom_obj": spec})


def code_in_symbol(g: Any, payload: Payload) -> None:
    (number,) = g["sym_int_values"].values()
    number["as_expr"]["expr_str"] = f"Symbol({payload.expression()})"


def code_in_stride(g: Any, payload: Payload) -> None:
    g["tensor_values"]["x"]["strides"][0] = {
        "as_expr": {"expr_str": payload.expression(), "hint": None}
    }


def name_of_a_value(g: Any, payload: Payload) -> None:
    """torch writes names into the source of a forward function."""
    g["nodes"][-1]["outputs"][0]["as_tensor"]["name"] = f"y = {payload.expression()}; y"


def name_of_a_weight(document: Any, payload: Payload) -> None:
    for spec in document["graph_module"]["signature"]["input_specs"]:
        if "parameter" in spec:
            spec["parameter"]["parameter_name"] = f'a" + {payload.expression()} + "'


def guard(*text: str) -> Change:
    """A guard; by default one that runs the payload."""
    return model(
        lambda d, payload: d.update(
            guards_code=[*text] or [f"L['x'].size()[0] > 0 and {payload.expression()}"]
        )
    )


def last(**changes: Any) -> Change:
    return graph(lambda g, _: g["nodes"][-1].update(changes))


def last_operand(at: int, argument: Mapping[str, Any]) -> Change:
    return graph(lambda g, _: g["nodes"][-1]["inputs"][at].update(arg=argument))


FILL = [
    {"name": "size", "arg": {"as_ints": [1 << 19, 1 << 19]}, "kind": 1},
    {"name": "fill_value", "arg": {"as_float": 1.0}, "kind": 1},
]


def cycle(g: Any, _: Payload) -> None:
    g["nodes"][0]["inputs"][0]["arg"] = g["nodes"][-1]["outputs"][0]


CHANGES: Mapping[str, tuple[Change, str]] = {
    "pickled weights": (pickled_weights, "stored as a pickle"),
    "an opaque constant": (opaque_constant, "opaque object"),
    "a custom object": (model(custom_object), "custom object"),
    "code as an extent": (
        graph(
            lambda g, payload: g["tensor_values"]["x"]["sizes"][0]["as_expr"].update(
                expr_str=payload.expression()
            )
        ),
        "is code, not arithmetic",
    ),
    "code as a symbol": (graph(code_in_symbol), "is code, not arithmetic"),
    "code as a range": (
        model(
            lambda d, payload: d["range_constraints"].update(
                {payload.expression(): {"min_val": 1, "max_val": 2}}
            )
        ),
        "is code, not arithmetic",
    ),
    "code as a guard": (guard(), "is code, not arithmetic"),
    "attributes in a guard": (  # of what a guard may name
        guard("L.__class__.__base__.__subclasses__()"),
        "is code, not arithmetic",
    ),
    "code as a stride": (graph(code_in_stride), "is code, not arithmetic"),
    "code as a name": (graph(name_of_a_value), "no identifier"),
    "code as a weight": (model(name_of_a_weight), "which no module gives"),
    "an operator as argument": (
        last_operand(-1, {"as_operator": "torch.hub.load"}),
        "hands over the operator",
    ),
    "a method of an operator": (
        last(target="torch.ops.aten.__class__.mro"),
        "not in the allow-list",
    ),
    "a loader": (last(target="torch.hub.load"), "no operator of torch"),
    "a compiled library": (
        file("data/aotinductor/sound/sound.wrapper.so", b"\x7fELF" + b"\0" * 100),
        "compiled code",
    ),
    "source code": (file("extra/sound.cpp", b"int main() { return 0; }"), "compiled code"),
    "a foreign operator": (last(target="torch.ops.evil.run.default"), "not in the allow-list"),
    "a function": (last(target="os.system"), "no operator of torch"),
    "an attribute getter": (last(target="_operator.attrgetter"), "not in the allow-list"),
    "an unknown operator": (last(target="torch.ops.aten.unique_dim.default"), "torch cannot read"),
    "a short storage": (file("data/weights/weight_0", b"1234"), "needs 64 byt"),
    "a lying size": (weight(sizes=ints(HUGE, 4)), "needs"),
    "overflowing sizes": (weight(sizes=ints(1 << 62, 1 << 62)), "needs"),
    "a negative size": (weight(sizes=ints(-4, 4)), "not a plain strided tensor"),
    "a negative stride": (weight(strides=ints(-4, 1)), "not a plain strided tensor"),
    "a far offset": (weight(storage_offset={"as_int": HUGE}), "needs"),
    "a negative offset": (weight(storage_offset={"as_int": -8}), "not a plain strided tensor"),
    "overlapping strides": (weight(sizes=ints(HUGE, 4), strides=ints(0, 0)), "needs"),
    "a weight outside": (weight(path_name="../../../etc/passwd"), "outside its folder"),
    "a type that is none": (weight(dtype=99), "an element type that is not read"),
    "no weight": (lambda files, _: files.pop("data/weights/weight_0"), "no file"),
    "a fill of 2^38": (last(target="torch.ops.aten.full.default", inputs=FILL), "bytes"),
    "a cycle": (graph(cycle), "torch cannot read the graph"),
    "a value made twice": (
        graph(lambda g, _: g["nodes"].append(g["nodes"][0])),
        "torch cannot read",
    ),
    "a value never made": (
        last_operand(0, {"as_tensor": {"name": "ghost"}}),
        "torch cannot read the graph",
    ),
    "an old schema": (model(lambda d, _: d["schema_version"].update(major=7)), "version 7"),
    "no graph": (model(lambda d, _: d.pop("graph_module")), "malformed"),
    "deep JSON": (file(MODEL, b"[" * 200_000), "not JSON"),
    "two models": (file("models/b.json", b"{}"), "2 models"),
    "big endian": (file("byteorder", b"big"), "byteorder"),
    "a path that leaves": (file("../../outside", b"x"), "leaves it"),
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
