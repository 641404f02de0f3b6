"""The allow-list: for each overload of an aten operator, the function that lowers it.

    @lowers("aten.relu.default")
    def relu(call: CallArguments, to: Builder) -> None:
        to.emit("aten.relu", [call.tensor("self")], call.output)

In-place forms (``aten.relu_.default``) are lowered as the form without the underscore; the caller
rebinds what they change. An argument that the function does not look at is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from braid.engine.lowering.builder import Builder
from braid.engine.pt2.call_arguments import CallArguments

Lower = Callable[[CallArguments, Builder], None]

_TABLE: dict[str, Lower] = {}
TABLE: Mapping[str, Lower] = MappingProxyType(_TABLE)


def lowers(*targets: str) -> Callable[[Lower], Lower]:
    """Enter the decorated function into the table for these targets."""

    def enter(lower: Lower) -> Lower:
        for target in targets:
            assert target not in _TABLE, f"{target} is lowered twice"
            _TABLE[target] = lower
        return lower

    return enter


def functional(target: str) -> str:
    """Return the target without the underscore of an in-place form."""
    if not target.startswith("aten."):
        return target
    space, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    return f"{space}.{plain}.{overload}"
