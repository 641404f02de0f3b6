"""What is done to a model before it is lowered: old operator sets raised, functions inlined.

The lowering table covers operator sets 7 to the newest by itself, so that conversion, which is
unreliable, is left to models older than that.
"""

from __future__ import annotations

import onnx
from onnx import inliner, version_converter

from core.errors import ModelImportError
from engine.onnx.lowering import DEFAULT_DOMAINS, check_nesting, subgraphs
from engine.onnx.registry import OLDEST_OPSET

MAX_NODES = 200_000  # after functions are inlined


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in a form that ``lower`` takes; the given one is not changed.

    Raises:
        ModelImportError: functions that call themselves or grow beyond ``MAX_NODES``, or an
            operator set too old to convert.
    """
    check_nesting(model.graph)
    if model.functions:
        _check_expansion(model)
        model = inliner.inline_local_functions(model)
    versions = [o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS]
    if versions and versions[0] < OLDEST_OPSET:
        try:
            model = version_converter.convert_version(model, OLDEST_OPSET)
        except Exception as error:  # the converter raises whatever its C++ throws
            reason = str(error).strip().splitlines()[-1][:200]
            raise ModelImportError(
                f"the model uses ONNX operator set {versions[0]}, which cannot be raised to "
                f"{OLDEST_OPSET} ({reason}); export it again with a newer one"
            ) from error
    return model


def _check_expansion(model: onnx.ModelProto) -> None:
    """Count the nodes that inlining would make, before anything expands."""
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: object, active: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:  # type: ignore[attr-defined]
            key = (node.domain, node.op_type)
            total += sum(size(graph.node, active) for graph in subgraphs(node))
            if key not in bodies:
                total += 1
            elif key in active:
                raise ModelImportError(f"function {node.op_type!r} calls itself")
            elif len(active) >= 100:
                raise ModelImportError("functions call each other more than 100 deep")
            else:
                if key not in sizes:
                    sizes[key] = size(bodies[key], (*active, key))
                total += sizes[key]
        if total > MAX_NODES:
            raise ModelImportError(f"inlining the model's functions makes over {MAX_NODES} nodes")
        return total

    size(model.graph.node, ())
