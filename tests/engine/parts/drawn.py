"""A model with a program and its parts in engines, and random plans that use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from braid.core.errors import PreconditionFailed
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.program import ProgramKey
from braid.core.tensor import TensorType
from braid.engine.device import Backend
from braid.engine.importer.host.report import MODEL_FILE, file_digest
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret
from braid.engine.program.program import BoundUnit, OpenedParts
from braid.engine.worker.engine_parts import border_of
from braid.engine.worker.models import LoadedModel, ModelTable


class Drawn:
    """A model at one batch size on a backend."""

    def __init__(self, model: onnx.ModelProto, folder: Path, backend: Backend, rows: int) -> None:
        path = folder / MODEL_FILE
        path.write_bytes(model.SerializeToString())
        self.model = model
        self._session: onnxruntime.InferenceSession | None = None
        self.inputs = {
            info.name: torch.from_numpy(
                np.random.default_rng(rows)
                .standard_normal([dim.dim_value or rows for dim in info.type.tensor_type.shape.dim])
                .astype(np.float32)
            )
            for info in model.graph.input
        }
        template, weights = run_passes(*lower(prepare(model)))
        specs = {name: TensorType("FP32", tuple(x.shape)) for name, x in self.inputs.items()}
        table = ModelTable(backend)
        table.hold("", LoadedModel(folder, template, weights, file_digest=file_digest(path)))
        self.rows = rows
        self.backend, self.table = backend, table
        self.key = ProgramKey("", tuple(specs.items()))
        self.program = table.program(self.key)
        self.graph = self.program.graph
        self.parts = table.engine_parts(self.key)

    def expected(self) -> dict[str, torch.Tensor]:
        return self._computed(self.inputs)

    def _computed(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs of the uncut model in ONNX Runtime."""
        if self._session is None:
            self._session = onnxruntime.InferenceSession(self.model.SerializeToString())
        names = [output.name for output in self._session.get_outputs()]
        feeds = {name: tensor.numpy() for name, tensor in inputs.items()}
        return dict(zip(names, map(torch.from_numpy, self._session.run(names, feeds)), strict=True))

    def has_rows_apart(self) -> bool:
        """Whether the uncut model gives for each row alone what it gives for it in the batch."""
        if any(tensor.shape[0] != self.rows for tensor in self.inputs.values()):
            return False
        for row in range(self.rows):
            alone = self._computed({name: x[row : row + 1] for name, x in self.inputs.items()})
            for name, whole in self.expected().items():
                if whole.dim() == 0 or whole.shape[0] != self.rows:
                    return False
                one = whole[row : row + 1]
                if one.shape != alone[name].shape or not torch.allclose(
                    one, alone[name], atol=1e-4
                ):
                    return False
        return True

    def can_be_cut(self, units: Sequence[int]) -> bool:
        inputs, outputs = border_of(self.graph, units)
        return bool(inputs) and {*inputs, *outputs} <= self.parts.values

    def random_plan(
        self, seed: int, threads: Sequence[int]
    ) -> tuple[StreamPlan, dict[EnginePart, BoundUnit], list[str]]:
        """A plan cut at random, its parts, and why those left out were refused."""
        random = np.random.default_rng(seed)
        count, at = len(self.graph.operators), 0
        opened: dict[EnginePart, BoundUnit] = {}
        refused = []
        while at < count:
            units = tuple(range(at, min(count, at + int(random.integers(1, 6)))))
            at = units[-1] + 1
            engine = str(random.choice(["", *self.backend.runtimes]))
            if not engine or not self.can_be_cut(units):
                continue
            version = self.backend.engine(engine).version
            part = EnginePart(units, engine, version, int(random.choice(threads)))
            try:
                opened[part] = self.parts.open(part)
            except PreconditionFailed as error:
                refused.append(str(error))
        launches = tuple(Launch(unit, 0) for unit in range(count))
        return StreamPlan(launches, 1, parts=tuple(opened)), opened, refused

    def random_lanes(self, seed: int) -> tuple[StreamPlan, dict[EnginePart, BoundUnit]]:
        """A plan of stages cut at random whose branches run on two lanes, in engines."""
        random = np.random.default_rng(seed)
        predecessors = self.graph.predecessors()
        launches: list[Launch] = []
        barriers: list[int] = []
        opened: dict[EnginePart, BoundUnit] = {}
        while (start := len(launches)) < len(predecessors):
            stage = range(start, min(len(predecessors), start + int(random.integers(1, 9))))
            lane_of: dict[int, int] = {}
            for unit in stage:
                lanes = {lane_of[before] for before in predecessors[unit] if before in lane_of}
                if len(lanes) > 1:  # it joins lanes: the stage ends before it
                    break
                lane_of[unit] = lanes.pop() if lanes else int(random.integers(2))
            if start:
                barriers.append(start)
            for lane in (0, 1):
                units = tuple(unit for unit in lane_of if lane_of[unit] == lane)
                launches += [Launch(unit, lane) for unit in units]
                engine = str(random.choice(["", *self.backend.runtimes]))
                if units and engine and self.can_be_cut(units):
                    part = EnginePart(units, engine, self.backend.engine(engine).version, 1)
                    with suppress(PreconditionFailed):
                        opened[part] = self.parts.open(part)
        plan = StreamPlan(tuple(launches), 2, tuple(barriers), parts=tuple(opened))
        return plan, opened

    def random_rows(self, seed: int) -> tuple[StreamPlan, OpenedParts]:
        """A plan that divides the batch at random over two lanes.

        Raises:
            PreconditionFailed: an engine refuses the model, or the model has no rows.
        """
        random = np.random.default_rng(seed)
        units = tuple(range(len(self.graph.operators)))
        first, parts = int(random.integers(1, self.rows)), []
        for rows in (first, self.rows - first):
            engine = str(random.choice(["", *self.backend.runtimes]))
            version = self.backend.engine(engine).version if engine else ""
            parts.append(EnginePart(units, engine, version, 1, rows))
        plan = StreamPlan(tuple(Launch(unit, 0) for unit in units), 1, parts=tuple(parts))
        return plan, self.table.open_parts(self.key, parts)

    def values(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Values of the static graph, by the plain interpreter."""
        shown = dataclasses.replace(self.graph, outputs=dict(zip(names, names, strict=True)))
        return interpret(shown, self.program.constants(), self.inputs)

    def tensors_of_the_file(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """The same of the file, by ONNX Runtime without its optimisations."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        feeds = {name: tensor.numpy() for name, tensor in self.inputs.items()}
        results = session.run(list(names), feeds)
        return dict(zip(names, map(torch.from_numpy, results), strict=True))
