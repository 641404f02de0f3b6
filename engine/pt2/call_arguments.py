"""One node of a ``.pt2`` as a lowering function sees it: every argument read is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braid.core.tensor import Dim
from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.document import (
    Argument,
    Dtype,
    ExportedProgram,
    OperatorCall,
    Setting,
    Symbol,
    Tensor,
    Unknown,
)

_MISSING = object()
Read = Callable[[str], str]


class CallArguments:
    """Arguments of one call, its tensors and symbols as values of the graph being built."""

    def __init__(
        self,
        call: OperatorCall,
        label: str,
        builder: Builder,
        read: Read,
        program: ExportedProgram,
    ) -> None:
        self.target = call.target
        self.label = label
        self.to = builder
        self._call = call
        self._value_of = read
        self._program = program
        self._read: set[str] = set()

    # Results

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all tensors made, those in a list included; "" where unused."""
        return self._call.names

    @property
    def output(self) -> tuple[str]:
        """Name of the first result, for ``Builder.emit``."""
        return (self.outputs[0],)

    # Arguments

    def _take(self, name: str, default: Any = _MISSING) -> Any:
        self._read.add(name)
        value = self._call.arguments.get(name, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise UnsupportedUse(f"argument {name} is missing")
            return default
        if isinstance(value, Unknown):
            raise UnsupportedUse(f"argument {name} of kind {value.what}")
        return value

    def has(self, name: str) -> bool:
        """True if the argument is given and not None."""
        return self._call.arguments.get(name) is not None

    def tensor(self, name: str) -> str:
        value = self.maybe(name)
        if not value:
            raise UnsupportedUse(f"argument {name} is missing")
        return value

    def maybe(self, name: str) -> str:
        """Value name of a tensor argument, "" if absent."""
        value = self._take(name, None)
        if value is None:
            return ""
        if not isinstance(value, Tensor):
            raise UnsupportedUse(f"argument {name} is not a tensor")
        return self._value_of(value.name)

    def tensors(self, name: str) -> list[str]:
        """Value names of a list of tensors, "" where absent."""
        values = self._take(name)
        if not isinstance(values, list) or not values:
            raise UnsupportedUse(f"argument {name} is not a list of tensors")
        return [self._value_of(v.name) if isinstance(v, Tensor) else "" for v in values]

    def dtype_of(self, name: str) -> str:
        """Element type of a tensor argument; "" if it is no tensor."""
        value = self._call.arguments.get(name)
        return self._program.dtypes.get(value.name, "") if isinstance(value, Tensor) else ""

    def dtype_of_name(self, tensor: str) -> str:
        return self._program.dtypes.get(tensor, "")

    def hidden_size(self, name: str) -> int:
        """Extent of the hidden state: the columns of the second of a list of recurrent weights."""
        value = self._call.arguments.get(name)
        second = value[1] if isinstance(value, list) and len(value) > 1 else None
        shape = self._program.shapes.get(second.name, ()) if isinstance(second, Tensor) else ()
        if len(shape) != 2 or not isinstance(shape[1], int):
            raise UnsupportedUse("weights of an unknown shape")
        return shape[1]

    def shape_of(self, name: str) -> tuple[Dim, ...]:
        """Extents of a tensor argument as the exporter saw them, symbols where open."""
        value = self._call.arguments.get(name)
        if not isinstance(value, Tensor) or value.name not in self._program.shapes:
            raise UnsupportedUse(f"the shape of argument {name} is not known")
        return self._program.shapes[value.name]

    def rank(self, name: str = "self") -> int:
        return len(self.shape_of(name))

    def axis(self, name: str, rank: int, default: Any = _MISSING) -> int:
        """Axis given as a literal, counted from the front."""
        axis = self.integer(name, default)
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise UnsupportedUse(f"{name}={axis} of {rank} axes")
        return axis % max(rank, 1)

    def operand(self, name: str, like: str = "self") -> str:
        """Value name of a tensor, or of a number that keeps the element type of ``like``."""
        value = self._take(name)
        if isinstance(value, Tensor):
            return self._value_of(value.name)
        if isinstance(value, Symbol):
            number = self._value_of(value.name)
            return self.to.emit("braid.reshape", [number], shape=[])
        if not isinstance(value, bool | int | float):
            raise UnsupportedUse(f"argument {name} is not a number")
        return self.to.add_constant(f"{self.label}/{name}", self._scalar(value, like))

    def _scalar(self, value: float, like: str) -> torch.Tensor:
        dtype = self.dtype_of(like)
        floating = bool(dtype) and torch_dtype(dtype).is_floating_point
        if isinstance(value, bool) and not floating:
            return torch.tensor(value)
        if isinstance(value, int) and not floating:
            return torch.tensor(value, dtype=torch.int64)
        return torch.tensor(float(value), dtype=torch.float64 if dtype == "FP64" else torch.float32)

    def number(self, name: str, default: Any = _MISSING) -> Any:
        value = self._take(name, default)
        if value is not default and not isinstance(value, bool | int | float):
            raise UnsupportedUse(f"argument {name} is not a fixed number")
        return value

    def integer(self, name: str, default: Any = _MISSING) -> int:
        value = self.number(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedUse(f"argument {name} is not a fixed integer")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.number(name, default))

    def text(self, name: str, default: str) -> str:
        value = self._take(name, default)
        if not isinstance(value, str):
            raise UnsupportedUse(f"argument {name} is not text")
        return value

    def integers(self, name: str, default: Any = _MISSING) -> list[int]:
        """List of literal integers; a single one counts as a list."""
        value = self._take(name, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise UnsupportedUse(f"argument {name} is not a list of fixed integers")
        return list(items)

    def dtype(self, name: str = "dtype", default: str = "") -> str:
        """Element type argument by its OIP name, ``default`` if absent."""
        value = self._take(name, None)
        if value is None:
            return default
        if not isinstance(value, Dtype):
            raise UnsupportedUse(f"argument {name} is not an element type")
        try:
            torch_dtype(value.name)
        except Exception as error:
            raise UnsupportedUse(f"element {value.name}") from error
        return value.name

    def extents(self, name: str, attribute: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Return integers that may be computed as (attributes, host operands) of ``attribute``."""
        value = self._take(name)
        items: list[Argument] = value if isinstance(value, list) else [value]
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return {attribute: list(items)}, {}
        return {}, {attribute: self.vector(items)}

    def vector(self, items: list[Argument]) -> str:
        """Value name of integers [n], some of them computed on the host."""
        parts = []
        for item in items:
            if isinstance(item, Symbol):
                parts.append(self._value_of(item.name))
            elif isinstance(item, int):
                parts.append(self.to.add_constant(f"{self.label}/extent", torch.tensor([item])))
            else:
                raise UnsupportedUse("an extent is not an integer")
        return parts[0] if len(parts) == 1 else self.to.emit("aten.cat", parts, dim=0)

    def argument(self, name: str) -> Argument:
        value: Argument = self._take(name, None)
        return value

    def without_effect(self, *names: str) -> None:
        """Declare arguments that change nothing at inference."""
        self._read.update(names)

    def require(self, name: str, *allowed: Any) -> None:
        """Refuse an argument that is given with another value than one of these (or None)."""
        value = self._take(name, None)
        if value is not None and value not in allowed:
            raise UnsupportedUse(f"{name}={value}")

    def unread(self) -> list[str]:
        """Arguments that the lowering function did not read, devices and layouts left out."""
        return [
            f"argument {name}"
            for name, value in self._call.arguments.items()
            if name not in self._read and value is not None and not isinstance(value, Setting)
        ]
