"""From lanes to native segments: what runs outside the interpreter, and where its values lie.

    number the steps ─> which are native? ─> lifetimes ─> memory plan ─> code of native segments

A step is native if its kernel is a recipe of primitives, its operands lie in memory as the recipe
wants them, and, beside other lanes, if it uses one thread. Lanes go native together or not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from braid.engine.cpu.lanes import Segment, Step
from braid.engine.cpu.memory import Lifetime, plan_memory
from braid.engine.cpu.segments import EXECUTE, SIGNAL, WAIT, Compiled, NativeSegment, OutsideOperand
from braid.engine.onednn.library import DST, SRC, ComputationCall
from braid.engine.onednn.recipe import Buffer, Place, Recipe
from braid.engine.runtime.yielding import YieldToRequests, no_pause

_VIEWS = frozenset(
    {
        *("braid.identity", "braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze"),
        *("braid.slice", "braid.split", "braid.expand", "braid.pad"),
        *("braid.cast", "braid.cast_like", "braid.bit_cast", "braid.depth_to_space"),
        *("aten.permute", "aten.cat", "aten.select"),
    }
)
"""Kinds whose kernels may return a view of an input; views from other kinds are copied."""


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A step with its number in the run, and the steps that are over when it starts."""

    step: Step
    number: int
    before: int  # bit set
    recipe: Recipe | None = None  # None: runs in Python


_Lane = list[_Numbered]

_Addresses = dict[int, list[tuple[int, int]]]  # output's slot -> memory objects, offsets in bytes


def compile_layout(
    segments: Sequence[Segment],
    keep: frozenset[int],
    kinds: Mapping[int, str],
    pause: YieldToRequests = no_pause,
) -> Compiled:
    """Compile a plan on lanes; ``keep``: slots of outputs, ``kinds``: operator kind by slot."""
    chosen = _choose(_number(segments), keep, pause)
    values = _Values(keep, kinds, the_end=1 << sum(len(lane) for s in segments for lane in s.lanes))
    items = (item for lanes in chosen for lane in lanes for item in lane)
    for item in sorted(items, key=lambda item: item.number):
        values.note(item)
        pause()
    memory = plan_memory(values.lifetimes(), pause)
    compiled = Compiled([], memory, values.sizes, frozenset(values.seen_through))
    pending: list[list[_Lane]] = []  # native, not assembled yet
    for part in _parts(segments, chosen):
        if isinstance(part, list):
            pending.append(part)
            continue
        if pending:
            compiled.parts.append(_native_segment(pending, values))
            pending = []
        compiled.parts.append(part)
    if pending:
        compiled.parts.append(_native_segment(pending, values))
    return compiled


def _parts(
    segments: Sequence[Segment], chosen: Sequence[list[_Lane]]
) -> Iterator[list[_Lane] | Step | Segment]:
    """Native lanes, single steps for Python, and whole segments for Python, in order."""
    for segment, lanes in zip(segments, chosen, strict=True):
        if len(lanes) > 1:
            yield segment if lanes[0][0].recipe is None else lanes
            continue
        for item in lanes[0]:
            yield item.step if item.recipe is None else [[item]]


def _number(segments: Sequence[Segment]) -> Iterator[list[_Lane]]:
    """Number the steps of each segment, and find the steps that are over before each starts."""
    number = over = 0  # next number; bit set of all steps of earlier segments
    for segment in segments:
        bit_of: dict[int, int] = {}  # unit that others wait for -> its bits
        ready = [over] * len(segment.lanes)
        position = [0] * len(segment.lanes)
        numbered: list[_Lane] = [[] for _ in segment.lanes]
        left = sum(map(len, segment.lanes))
        while left:
            for lane, steps in enumerate(segment.lanes):
                while position[lane] < len(steps):
                    step = steps[position[lane]]
                    if any(unit not in bit_of for unit in step.waits):
                        break
                    before = ready[lane]
                    for unit in step.waits:
                        before |= bit_of[unit]
                    numbered[lane].append(_Numbered(step, number, before))
                    ready[lane] = before | 1 << number
                    bit_of.update(dict.fromkeys(step.signals, ready[lane]))
                    number, left, position[lane] = number + 1, left - 1, position[lane] + 1
        over = (1 << number) - 1
        yield numbered


def _choose(
    segments: Iterator[list[_Lane]], keep: frozenset[int], pause: YieldToRequests
) -> list[list[_Lane]]:
    """The steps of each segment's lanes, native ones with their recipe."""
    where: dict[int, Buffer] = {}  # slot -> how it lies in memory, if a native segment fills it
    chosen = []
    for lanes in segments:
        several = len(lanes) > 1
        trial = dict(where)
        recipes: dict[int, Recipe] = {}
        for item in sorted((i for lane in lanes for i in lane), key=lambda i: i.number):
            pause()
            recipe = None if several and item.step.threads > 1 else _recipe(item, trial, keep)
            if recipe is None:
                for slot in item.step.unit.outputs:
                    trial.pop(slot, None)
            else:
                recipes[item.number] = recipe
                trial.update(zip(item.step.unit.outputs, recipe.results, strict=True))
        if several and len(recipes) < sum(map(len, lanes)):
            recipes = {}
        else:
            where = trial
        chosen.append(
            [[replace(item, recipe=recipes.get(item.number)) for item in lane] for lane in lanes]
        )
    return chosen


def _recipe(item: _Numbered, where: Mapping[int, Buffer], keep: frozenset[int]) -> Recipe | None:
    unit = item.step.unit
    recipe = unit.kernel.recipe_on(item.step.threads)
    if recipe is None:
        return None
    if recipe.views and not (
        unit.inputs[0] in where and keep.isdisjoint((*unit.inputs, *unit.outputs))
    ):
        return None  # only activation memory stays where it is
    for position, images in recipe.operands:
        buffer = where.get(item.step.unit.inputs[position])
        if buffer is not None and (buffer.images and buffer.seen_as is None) != images:
            return None
    return recipe


class _Values:
    """Values that native segments make: where they are kept and which steps touch them."""

    def __init__(self, keep: frozenset[int], kinds: Mapping[int, str], the_end: int) -> None:
        self.keep = keep
        self.sizes: dict[
            int, int
        ] = {}  # bytes of values in activation memory; temporaries are negative
        self.shown: set[int] = set()  # those that Python reads; of outputs it reads the copy
        self._kinds = kinds
        self._the_end = the_end  # a step after all others
        self._touched: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self.seen_through: dict[int, set[int]] = {}  # slot -> values it may be a view of
        self.temporaries: dict[int, list[int]] = {}  # step number -> its temporary values
        # slot that is a view -> value in activation memory, bytes behind its start
        self.views: dict[int, tuple[int, int]] = {}

    def note(self, item: _Numbered) -> None:
        """Note what a step reads and makes; call it for steps in the order of their numbers."""
        unit, bit = item.step.unit, 1 << item.number
        for slot in unit.inputs:
            for value in self._behind(slot):
                self._touched[value] |= bit
        if item.recipe is None:
            self._note_python(item)
            return
        if item.recipe.views:
            base, start = self.place(unit.inputs[0])
            for slot, offset in zip(unit.outputs, item.recipe.views, strict=True):
                self.views[slot] = base, start + offset
                self.seen_through[slot] = {base}
            return
        for slot, buffer in zip(unit.outputs, item.recipe.results, strict=True):
            if slot not in self.keep or _is_copied_out(buffer):
                self._enter(slot, buffer, item)
        for buffer in item.recipe.temporaries:
            value = -1 - len(self.sizes)
            self._enter(value, buffer, item)
            self.temporaries.setdefault(item.number, []).append(value)

    def _note_python(self, item: _Numbered) -> None:
        behind = {value for slot in item.step.unit.inputs for value in self._behind(slot)}
        slots = {*item.step.unit.inputs} - self.keep
        self.shown.update(slot for slot in slots if slot in self.sizes or slot in self.views)
        for slot in item.step.unit.outputs:
            if behind and self._kinds.get(slot) in _VIEWS:
                self.seen_through[slot] = behind
                if slot in self.keep:  # copied when the run is over
                    for value in behind:
                        self._touched[value] |= self._the_end

    def _enter(self, value: int, buffer: Buffer, item: _Numbered) -> None:
        self.sizes[value] = buffer.size_bytes
        self._touched[value] = 1 << item.number
        self._before[value] = item.before

    def place(self, slot: int) -> tuple[int, int]:
        """The value whose memory a slot lies in, and the bytes behind its start."""
        return self.views.get(slot, (slot, 0))

    def _behind(self, slot: int) -> set[int]:
        return {slot} if slot in self.sizes else self.seen_through.get(slot, set())

    def lifetimes(self) -> dict[int, Lifetime]:
        return {
            value: Lifetime(size, self._touched[value], self._before[value])
            for value, size in self.sizes.items()
        }


def _native_segment(segments: Sequence[list[_Lane]], values: _Values) -> NativeSegment:
    nothing = np.empty(0)
    native = NativeSegment(nothing, nothing, nothing)
    joined = _joined(segments)
    buffers = {
        slot: buffer
        for lanes in joined
        for lane in lanes
        for item in lane
        if item.recipe is not None
        for slot, buffer in zip(item.step.unit.outputs, item.recipe.results, strict=True)
    }
    results: _Addresses = {slot: [] for slot in buffers if slot in values.keep}
    flags: dict[int, int] = {}
    header, body = [len(joined)], list[int]()
    words = 1 + sum(1 + 2 * len(lanes) for lanes in joined)
    for lanes in joined:
        header.append(len(lanes))
        for lane in lanes:
            start = words + len(body)
            for item in lane:
                waits = [flags.setdefault(unit, len(flags)) for unit in item.step.waits]
                body += [word for flag in waits for word in (WAIT, flag)]
                body += _code(item, native, results, values)
                body += _copies_out(item, native, results)
                signals = [flags.setdefault(unit, len(flags)) for unit in item.step.signals]
                body += [word for flag in signals for word in (SIGNAL, flag)]
                native.releases += item.step.releases
            header += [start, words + len(body)]
    native.code = np.array([*header, *body], np.int64)
    native.flags = np.zeros(max(1, len(flags)), np.int64)
    native.bookmark = np.zeros(2 + max(map(len, joined)), np.int64)
    native.results = [
        (slot, _as_callers_want(buffers[slot], slot, values), memories)
        for slot, memories in results.items()
    ]
    native.shown = [
        (slot, *values.place(slot), buffers[slot])
        for slot in sorted(buffers)
        if slot in values.shown
    ]
    return native


def _joined(segments: Sequence[list[_Lane]]) -> list[list[_Lane]]:
    """Segments of the code: steps that follow each other on one lane are one of them."""
    joined: list[list[_Lane]] = []
    for lanes in segments:
        if len(lanes) == 1 and joined and len(joined[-1]) == 1:
            joined[-1][0].extend(lanes[0])
        else:
            joined.append([list(lane) for lane in lanes])
    return joined


def _code(
    item: _Numbered, native: NativeSegment, results: _Addresses, values: _Values
) -> list[int]:
    """Words that execute a step's actions; notes where its memory objects get addresses from."""
    assert item.recipe is not None
    words: list[int] = []
    for action in item.recipe.actions:
        call = ComputationCall(action.computation, action.fixed, tuple(action.places))
        native.calls.append(call)
        for memory, place in zip(call.moving, action.places.values(), strict=True):
            slot, images = _slot(item, place, values)
            slot, start = values.place(slot)
            offset = start + place.offset_bytes
            if slot in values.sizes:
                native.fixed.append((memory, slot, offset))
            elif slot in results:
                results[slot].append((memory, offset))
            else:
                native.operands.append(OutsideOperand(memory, slot, images, offset))
        words += [EXECUTE, *call.words]
    return words


def _is_copied_out(buffer: Buffer) -> bool:
    """Whether an output of the graph is made as images, and then copied to memory of the caller."""
    return not buffer.is_dense and buffer.dtype == "FP32"


def _as_callers_want(buffer: Buffer, slot: int, values: _Values) -> Buffer:
    return replace(buffer, images=False) if slot in values.sizes else buffer


def _copies_out(item: _Numbered, native: NativeSegment, results: _Addresses) -> list[int]:
    words: list[int] = []
    assert item.recipe is not None
    for slot, buffer in zip(item.step.unit.outputs, item.recipe.results, strict=True):
        if slot not in results or not _is_copied_out(buffer):
            continue
        library = item.recipe.actions[-1].computation.library.on(buffer.dtype)
        with library.threads(item.step.threads):
            copy = library.copy(library.images(buffer.shape), library.dense(buffer.shape))
        call = ComputationCall(copy, {}, (SRC, DST))
        source, target = call.moving
        native.calls.append(call)
        native.fixed.append((source, slot, 0))
        results[slot].append((target, 0))
        words += [EXECUTE, *call.words]
    return words


def _slot(item: _Numbered, place: Place, values: _Values) -> tuple[int, bool]:
    """The value at a place, and whether it must lie there as images."""
    assert item.recipe is not None
    match place.kind:
        case "operand":
            position, images = item.recipe.operands[place.index]
            return item.step.unit.inputs[position], images
        case "result":
            return item.step.unit.outputs[place.index], False
        case "temporary":
            return values.temporaries[item.number][place.index], False
