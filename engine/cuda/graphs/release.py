"""Release of tensors, so that no memory is reused while a kernel still needs it.

A block goes back to the stream that allocated it and may be given to the very next launch there.
So a tensor is dropped only when every later launch on *that* stream comes after all calls that
touch it; with barriers that is after the join of the stage that last reads it, without them it
follows from the events.

Several slots may show one block: a kernel may answer with views of its inputs, or with several
views of one result. The warm-up sees which (``SlotAliases``), and such slots are dropped together.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from braid.engine.cuda.graphs.calls import StreamCall
from braid.engine.cuda.graphs.commands import Order


class SlotAliases:
    """Sets of slots that share memory."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def root(self, slot: int) -> int:
        """The slot that stands for all that share memory with this one; the first to hold it."""
        while slot in self._parent:
            slot = self._parent[slot]
        return slot

    def learn(
        self,
        inputs: Sequence[tuple[int, Tensor | None]],
        outputs: Sequence[tuple[int, Tensor]],
    ) -> None:
        """Note which outputs of a call, by slot, share memory with its inputs or each other."""
        holder: dict[int, int] = {}  # address of the memory -> slot
        for slot, tensor in inputs:
            if tensor is not None and (address := _address(tensor)):
                holder.setdefault(address, self.root(slot))
        for slot, tensor in outputs:
            if address := _address(tensor):
                first_slot = holder.setdefault(address, slot)
                if first_slot != slot:
                    self._parent[slot] = first_slot


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def release_points(
    calls: Sequence[StreamCall], order: Order, aliases: SlotAliases, keep: frozenset[int]
) -> dict[int, list[int]]:
    """Call -> slots to drop just before it is launched; slots that share memory go together."""
    owner: dict[int, int] = {}  # root -> stream that allocated it
    members: dict[int, list[int]] = {}
    touched: dict[int, int] = {}  # root -> bit set of calls
    for i, call in enumerate(calls):
        for slot in call.bound.outputs:
            root = aliases.root(slot)
            members.setdefault(root, []).append(slot)
            if root == slot:
                owner[root] = call.stream
        for slot in (*call.bound.inputs, *call.bound.outputs):
            root = aliases.root(slot)
            touched[root] = touched.get(root, 0) | 1 << i
    kept = {aliases.root(slot) for slot in keep}
    points: dict[int, list[int]] = {}
    launched = _launches_by_stream(calls)
    for root, stream in owner.items():
        at = _release_point(touched[root], launched[stream], order)
        if root not in kept and at < len(calls):
            points.setdefault(at, []).extend(members[root])
    return points


def _release_point(touched: int, launched: Sequence[int], order: Order) -> int:
    """First call before which releasing is safe: later launches come after all that touch it."""
    last = touched.bit_length() - 1
    unordered = (call for call in reversed(launched) if touched & ~order.before[call])
    return 1 + max(last, next(unordered, -1))


def _launches_by_stream(calls: Sequence[StreamCall]) -> Mapping[int, list[int]]:
    launched: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        launched.setdefault(call.stream, []).append(i)
    return launched
