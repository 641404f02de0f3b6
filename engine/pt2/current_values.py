"""In-place operators made functional: the present value of every tensor of a program.

    y = x.view(2, -1)     y is a view of x: (root x, steps [view])
    y.add_(1)             a new value for y; put back through the steps, a new value for x
    z = x + 0             reads x's new value; y, if read again, is derived anew from it

Every tensor of the graph is a chain of view operators on a root. A change writes the root; other
views of the root are derived again when they are next read. Where torch may or may not copy
(reshape, contiguous), neither reading nor changing across such a step is allowed after a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.pt2.document import OperatorCall, Tensor

_VIEWS = frozenset(
    {
        *("aten.view.default", "aten.select.int", "aten.slice.Tensor", "aten.transpose.int"),
        *("aten.permute.default", "aten.t.default", "aten.unsqueeze.default"),
        *("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default"),
        *("aten.alias.default", "aten.detach.default"),
    }
)
_PERHAPS = frozenset(
    {
        *("reshape", "flatten", "contiguous", "to", "expand", "expand_as", "unbind", "split"),
        *("split_with_sizes", "chunk", "unflatten", "dropout", "positive", "type_as", "narrow"),
        *("lift_fresh", "numpy_T", "feature_dropout"),
    }
)

Relower = Callable[[OperatorCall, str], str]  # (call, value of its self) -> value of its result


@dataclass(frozen=True, slots=True)
class _Step:
    """View operator of a chain; ``base`` is the tensor to which it was applied."""

    call: OperatorCall
    base: str
    certain: bool  # False: torch may have copied


@dataclass(slots=True)
class _Root:
    value: str
    version: int = 0
    fixed: bool = False  # a weight


@dataclass(slots=True)
class _Place:
    root: str
    steps: tuple[_Step, ...] = ()
    seen: int = 0  # version of the root that ``value`` belongs to
    value: str = ""


@dataclass(slots=True)
class CurrentValues:
    """Present values of the tensors of a program being lowered."""

    to: Builder
    relower: Relower
    _roots: dict[str, _Root] = field(default_factory=dict)
    _places: dict[str, _Place] = field(default_factory=dict)

    def define(self, tensor: str, value: str, weight: bool = False) -> None:
        """Enter a tensor with memory of its own."""
        self._roots[tensor] = _Root(value, fixed=weight)
        self._places[tensor] = _Place(tensor, value=value)

    def result(self, tensor: str, call: OperatorCall, value: str) -> None:
        """Enter the result of ``call``: a view of its first operand, or a tensor of its own."""
        base = _base(call)
        certain = call.target in _VIEWS
        if base in self._places and (certain or call.target.split(".")[1] in _PERHAPS):
            place = self._places[base]
            steps = (*place.steps, _Step(call, base, certain))
            self._places[tensor] = _Place(place.root, steps, self._roots[place.root].version, value)
        else:
            self.define(tensor, value)

    def read(self, tensor: str) -> str:
        """Return the present value of a tensor.

        Raises:
            UnsupportedUse: it may or may not follow a change made since.
        """
        if tensor not in self._places:
            raise UnsupportedUse(f"{tensor!r} is not produced before it is read")
        place = self._places[tensor]
        root = self._roots[place.root]
        if place.seen != root.version:
            value = root.value
            for step in place.steps:
                if not step.certain:
                    raise UnsupportedUse(
                        f"{tensor!r} may share memory with a tensor changed in place; write the "
                        "model without in-place operators there"
                    )
                value = self.relower(step.call, value)
            place.seen, place.value = root.version, value
        return place.value

    def change(self, tensor: str, value: str, name: str) -> None:
        """Let ``tensor`` hold ``value``, and so ``name``, the result of the in-place call.

        Raises:
            UnsupportedUse: a weight, or what is changed besides is not certain.
        """
        place = self._places[tensor]
        root = self._roots[place.root]
        if root.fixed:
            raise UnsupportedUse(f"it changes {place.root!r}, a weight of the model")
        if not all(step.certain for step in place.steps):
            raise UnsupportedUse("it changes what may or may not be a view of another tensor")
        bases = [root.value]
        for step in place.steps[:-1]:
            bases.append(self.relower(step.call, bases[-1]))
        put = value
        for step, base in zip(reversed(place.steps), reversed(bases), strict=False):
            put = self._put_back(step.call, base, put)
        root.value, root.version = put, root.version + 1
        place.seen, place.value = root.version, value
        self._places[name] = _Place(place.root, place.steps, root.version, value)

    def _put_back(self, call: OperatorCall, base: str, part: str) -> str:
        """Return ``base`` with the view that ``call`` takes of it replaced by ``part``."""
        name = call.target.split(".")[1]
        given = call.arguments
        if name in ("alias", "detach"):
            return part
        if name in ("view", "unsqueeze", "squeeze"):
            shape = self.to.emit("braid.shape", [base])
            return self.to.emit("braid.reshape", [part], host={"shape": shape}, allow_zero=True)
        if name in ("transpose", "permute", "t"):
            return self._moved_back(call, part)
        bounds = [given.get(key) for key in ("dim", "start", "end", "step")]
        axis = _number(bounds[0], 0)
        if name == "select":
            index = _number(given.get("index"), 0)
            part = self.to.emit("braid.unsqueeze", [part], axes=[axis])
            start, end, step = index, index + 1 if index != -1 else 1 << 62, 1
        else:
            start, end = _number(bounds[1], 0), _number(bounds[2], 1 << 62)
            step = _number(bounds[3], 1)
        operands = [base, part]
        return self.to.emit("braid.place", operands, axis=axis, start=start, end=end, step=step)

    def _moved_back(self, call: OperatorCall, part: str) -> str:
        if not call.target.startswith("aten.permute"):  # swapping twice changes nothing
            return self.relower(call, part)
        dims = call.arguments.get("dims")
        assert isinstance(dims, list)
        forward = [_number(dim, 0) % len(dims) for dim in dims]
        inverse = [forward.index(axis) for axis in range(len(forward))]
        return self.to.emit("aten.permute", [part], dims=inverse)


def _base(call: OperatorCall) -> str:
    for name in ("self", "input"):
        value = call.arguments.get(name)
        if isinstance(value, Tensor):
            return value.name
    return ""


def _number(value: object, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedUse("a change in place at a computed position")
    return value
