"""A sequential plan of kernels and regions, or with pairs of kernels on two lanes.

    static graph ──rules, records──> units ──order──> memory plan ──> code of the lane executor
                      rest ──connected regions──> ONNX Runtime, over the same memory

The lane executor (engine/cpu/native/lanes.c) takes words and addresses, so it runs without torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from benchmarks.one_graph.kernels import Call, Context, Moving, Record, library, records_of
from benchmarks.one_graph.model import ORT, Stored, Type, specialised, types_of
from benchmarks.one_graph.rules import fused
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import DST, SRC, Primitive
from braid.engine.runtime.arrays import ALIGNMENT, Array, aligned

_EXECUTE = 0


@dataclass(slots=True)
class Unit:
    """Something that runs: calls outside the interpreter, or a function in it."""

    name: str
    reads: Sequence[str]
    makes: Sequence[str]
    calls: Callable[[int], list[Call]] | None = None  # for a number of threads
    region: Region | None = None
    interleaves: bool = False  # an image of the caller, into the order that kernels want

    @property
    def is_native(self) -> bool:
        return self.calls is not None


class Region:
    """A connected region of nodes in one session, bound to addresses."""

    def __init__(self, model: bytes, folder: str, threads: int, sources: Mapping[str, str]) -> None:
        """``sources``: value of the plan that an input is, where that has another name."""
        import onnxruntime

        self._sources = sources

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if threads > 1:  # else its threads would share the core that this one is pinned to
            cores = ";".join(str(core + 1) for core in range(1, threads))
            options.add_session_config_entry("session.intra_op_thread_affinities", cores)
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", folder
        )
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.outputs = [value.name for value in self._session.get_outputs()]
        self._bound: Any = None

    def bind(self, at: Callable[[str], tuple[int, Type]]) -> None:
        self._bound = self._session.io_binding()
        for names, bind in (
            (self.inputs, self._bound.bind_input),
            (self.outputs, self._bound.bind_output),
        ):
            for name in names:
                address, kind = at(self._sources.get(name, name))
                bind(name, "cpu", 0, kind.dtype, list(kind.shape), address)

    def run(self) -> None:
        self._session.run_with_iobinding(self._bound)


@dataclass(slots=True)
class Packed:
    """Reordered weights of one model, shared by its plans."""

    by_name: dict[str, list[tuple[Primitive, Array]]] = field(default_factory=dict)


def compiled(stored: Stored, extents: Mapping[str, int], how: str = ORT) -> ModelProto:
    """The graph that a plan runs, as a model that any runtime can run; kept in the folder."""
    name = "-".join(f"{axis}{extent}" for axis, extent in sorted(extents.items()))
    file = stored.folder / f"{name}-{how}.onnx"
    if file.exists():
        return onnx.load(file)
    model = fused(specialised(stored.graph, extents, how))
    file.write_bytes(model.SerializeToString())
    return model


class Plan:
    """A model for static shapes, ready to run on ``threads`` threads of the calling thread."""

    def __init__(
        self,
        stored: Stored,
        extents: Mapping[str, int],
        threads: int = 2,
        *,
        packed: Packed | None = None,
        how: str = ORT,
        lanes: bool = False,
    ) -> None:
        self.model, self._stored, self._threads = compiled(stored, extents, how), stored, threads
        constants = dict(stored.weights)
        constants |= {
            proto.name: numpy_helper.to_array(proto) for proto in self.model.graph.initializer
        }
        self.types = types_of(self.model)
        self._context = Context(self.types, constants, (packed or Packed()).by_name)
        self.inputs = [i.name for i in self.model.graph.input if i.name not in stored.weights]
        self.outputs = [output.name for output in self.model.graph.output]
        self._roots: dict[str, str] = {}  # view -> the value that it lies in
        self._images: set[str] = set()  # values that lie with a pixel's channels side by side
        self.units = list(self._units())
        self.stages = self._paired() if lanes else [[unit] for unit in self.units]
        self._arena, self._offsets = self._placed()
        self._at: dict[str, int] = {}  # addresses of inputs and outputs
        self._steps = list(self._assembled())
        self._runs = 0

    def _root(self, name: str) -> str:
        while name in self._roots:
            name = self._roots[name]
        return name

    def _units(self) -> Iterator[Unit]:
        """Kernels and regions in an order that suits what they read.

        A region is what ONNX Runtime runs between two phases of kernels: it reads kernels of
        earlier phases only, and kernels of a phase read regions up to it.
        """
        nodes = list(self.model.graph.node)
        chosen = [next(records_of(node, self._context), None) for node in nodes]
        phase, by_kernel, phases = dict[str, int](), set[str](), list[int]()
        for node, record in zip(nodes, chosen, strict=True):
            at = max(
                (phase.get(n, 0) + (record is None and n in by_kernel) for n in node.input),
                default=0,
            )
            phases.append(at)
            phase.update(dict.fromkeys(node.output, at))
            if record is not None:
                by_kernel.update(node.output)
        for at in range(max(phases) + 1):
            pairs = zip(nodes, chosen, phases, strict=True)
            here = [(node, record) for node, record, p in pairs if p == at]
            region = [node for node, record in here if record is None]
            if region:
                yield from self._region(region, f"region {at}")
            for node, record in here:
                if record is not None:
                    yield from self._kernel(node, record)

    def _kernel(self, node: NodeProto, record: Record) -> Iterator[Unit]:
        made = node.output[0]
        given = [name for name in node.input if name and name not in self._context.constants]
        if record.view:
            given = given[:1]
        lies: dict[str, str] = {}
        for name in given:
            lies[name] = yield from self._lying(name, images=record.images)
        if record.view:
            self._roots[made] = lies[given[0]]
            return
        if record.images and len(self.types[made].shape) == 4:
            self._images.add(made)
        copy = NodeProto()
        copy.CopyFrom(node)
        for at, name in enumerate(node.input):
            copy.input[at] = lies.get(name, name)
        yield Unit(
            node.name or made,
            list(lies.values()),
            [made],
            lambda threads: record.bind(copy, self._context, threads),
        )

    def _lying(self, name: str, *, images: bool) -> Generator[Unit, None, str]:
        """The value in the wanted order, by a unit that moves it if it lies otherwise."""
        shape = self.types[name].shape
        plain = len(shape) != 4 or shape[1] == 1 or shape[2:] == (1, 1)
        if plain or images == (name in self._images):
            return name
        moved = f"{name}:{'images' if images else 'dense'}"
        if moved in self.types:
            return moved
        self.types[moved] = self.types[name]
        if images:
            self._images.add(moved)
        if images and name in self.inputs and shape[1] <= 16:
            yield Unit(moved, [name], [moved], interleaves=True)
            return moved

        def calls(threads: int) -> list[Call]:
            lib = library()
            layouts = lib.dense(shape), lib.images(shape)
            source, target = layouts if images else layouts[::-1]
            with lib.threads(threads):
                copy = lib.copy(source, target)
            return [Call(copy, {}, {SRC: Moving(name), DST: Moving(moved)})]

        yield Unit(moved, [name], [moved], calls)
        return moved

    def _region(self, nodes: Sequence[NodeProto], name: str) -> Iterator[Unit]:
        made = {output for node in nodes for output in node.output if output}
        reads = list(dict.fromkeys(n for node in nodes for n in node.input if n and n not in made))
        inside = set(map(id, nodes))
        needed = {n for o in self.model.graph.node if id(o) not in inside for n in o.input}
        needed |= set(self.outputs)
        small = {proto.name: proto for proto in self.model.graph.initializer}
        given = [n for n in reads if n not in small and n not in self._stored.weights]
        sources: dict[str, str] = {}
        for value in given:
            sources[value] = yield from self._lying(value, images=False)

        def info(value: str) -> Any:
            kind = self.types[value]
            element = helper.np_dtype_to_tensor_dtype(kind.dtype)
            return helper.make_tensor_value_info(value, element, kind.shape)

        graph = helper.make_graph(
            *(nodes, name, list(map(info, given)), list(map(info, sorted(made & needed)))),
            initializer=[
                small[n] if n in small else self._stored.external(n)
                for n in reads
                if n not in given
            ],
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, functions=self.model.functions
        )
        model.ir_version = self.model.ir_version
        region = Region(
            *(model.SerializeToString(), str(self._stored.folder), self._threads, sources)
        )
        yield Unit(name, list(sources.values()), sorted(made & needed), region=region)

    def _paired(self) -> list[list[Unit]]:
        """Stages: two kernels in a row that read the same value go side by side."""
        stages: list[list[Unit]] = []
        for unit in self.units:
            last = stages[-1] if stages else []
            alike = len(last) == 1 and last[0].is_native and unit.is_native
            if alike and last[0].reads == unit.reads and last[0].makes != unit.reads:
                last.append(unit)
            else:
                stages.append([unit])
        return stages

    def _placed(self) -> tuple[Array, dict[str, int]]:
        """Memory for values between kernels: the largest first, each in the first gap in time."""
        life: dict[str, tuple[int, int]] = {}
        for at, stage in enumerate(self.stages):
            for unit in stage:
                for name in map(self._root, (*unit.makes, *unit.reads)):
                    life[name] = life.get(name, (at, at))[0], at
        for name in (*self.inputs, *map(self._root, self.outputs)):
            life.pop(name, None)
        placed: list[tuple[int, int, tuple[int, int]]] = []
        offsets, peak = dict[str, int](), 0
        for name in sorted(life, key=lambda n: (-self.types[n].size_bytes, n)):
            size = -(-self.types[name].size_bytes // ALIGNMENT) * ALIGNMENT
            first, last = life[name]
            at = 0
            for start, end, (begun, over) in sorted(placed):
                if over < first or last < begun:
                    continue
                if start - at >= size:
                    break
                at = max(at, end)
            placed.append((at, at + size, life[name]))
            offsets[name], peak = at, max(peak, at + size)
        return aligned(peak), offsets

    def _assembled(self) -> Iterator[Unit | _Code]:
        code = _Code()
        for stage in self.stages:
            if not stage[0].is_native:
                if code.segments:
                    yield code.closed()
                    code = _Code()
                yield stage[0]
                continue
            threads = self._threads if len(stage) == 1 else 1
            code.add([unit.calls(threads) for unit in stage if unit.calls is not None])
        if code.segments:
            yield code.closed()

    def _address(self, value: str) -> tuple[int, Type]:
        root = self._root(value)
        if root in self._offsets:
            return self._arena.ctypes.data + self._offsets[root], self.types[value]
        return self._at[root], self.types[value]

    def _bind(self, at: dict[str, int]) -> None:
        self._at = at
        set_handle = library().set_handle
        for step in self._steps:
            if isinstance(step, Unit):
                if step.region is not None:
                    step.region.bind(self._address)
                continue
            for call in step.calls:
                for memory, moving in call.moving:
                    address, _ = self._address(moving.value)
                    set_handle(memory, address + moving.offset_bytes)

    def empty_outputs(self) -> dict[str, Array]:
        kinds = {name: self.types[name] for name in self.outputs}
        return {
            name: aligned(kind.size_bytes).view(kind.dtype).reshape(kind.shape)
            for name, kind in kinds.items()
        }

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Run on dense arrays; addresses are set again where they differ from the last run's."""
        at = {name: inputs[name].ctypes.data for name in self.inputs}
        at |= {self._root(name): outputs[name].ctypes.data for name in self.outputs}
        if at != self._at:
            self._bind(at)
        self._runs += 1
        native = find_native()
        assert native is not None
        for step in self._steps:
            if isinstance(step, _Code):
                step.run(native, self._runs)
            elif step.region is not None:
                step.region.run()
            else:
                n, c, h, w = self.types[step.reads[0]].shape
                source, target = (self._address(n)[0] for n in (step.reads[0], step.makes[0]))
                native.braid_interleave(
                    *map(ctypes.c_void_p, (source, target)),
                    *map(ctypes.c_int64, (n, c, h * w)),
                    self._threads,
                )


class _Code:
    """Words for the lane executor: segments of one or several lanes."""

    def __init__(self) -> None:
        self.segments: list[list[list[int]]] = []
        self.calls: list[Call] = []

    def add(self, lanes: Sequence[Sequence[Call]]) -> None:
        words = [[w for call in lane for w in (_EXECUTE, *call.words)] for lane in lanes]
        self.calls += [call for lane in lanes for call in lane]
        if len(words) == 1 and self.segments and len(self.segments[-1]) == 1:
            self.segments[-1][0] += words[0]
        else:
            self.segments.append(words)

    def closed(self) -> _Code:
        header, body = [len(self.segments)], list[int]()
        words = 1 + sum(1 + 2 * len(lanes) for lanes in self.segments)
        for lanes in self.segments:
            header.append(len(lanes))
            for lane in lanes:
                header += [words + len(body), words + len(body) + len(lane)]
                body += lane
        self._code = np.array([*header, *body], np.int64)
        self._flags = np.zeros(1, np.int64)
        self._bookmark = np.zeros(2 + max(map(len, self.segments)), np.int64)
        arrays = self._code, self._flags, self._bookmark
        self._addresses = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        return self

    def run(self, native: ctypes.CDLL, number: int) -> None:
        code, flags, bookmark = self._addresses
        nothing = ctypes.c_int64(0)
        if status := native.braid_run_lanes(
            code, flags, ctypes.c_int64(number), bookmark, nothing, -1, None
        ):
            raise RuntimeError(f"a kernel answered {status}")
