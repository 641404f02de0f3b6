"""A whole model in another runtime, for runs at shapes that nothing was prepared for.

slot ──views at the shapes of the run──> session ──> slot, or its heap where no input says an
                                                     output's extents

The front end lays a slot out by the shapes of a request, and each run says them. So a new shape
costs no call, no graph and no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from braid.core.errors import PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.program import ProgramKey
from braid.core.tensor import TensorType, outputs_at
from braid.engine.device import Tensors, Whole
from braid.engine.link.shared_memory import SlotLayout, slot_layout
from braid.engine.ops.dtypes import array_of
from braid.engine.program.onnxruntime_session import check_division
from braid.engine.worker.heap_runs import Heap


def check_any_division(template: OpGraph, graph: OpGraph, constants: Mapping[str, Tensor]) -> None:
    """As ``check_division``, for all that the model may run, not only one static graph of it."""
    check_division(graph, constants)
    for operator in template.operators:
        for branch in operator.branches:
            if any(unit.kind == "aten.div" or unit.branches for unit in branch.operators):
                raise PreconditionFailed(
                    f"a branch of {operator.name!r} may divide integers, which was not tried"
                )


@dataclass(slots=True, eq=False)
class AnyShape:
    """A session, ready for any shape of its model."""

    digest: str
    template: OpGraph
    session: Whole
    binds: bool = True  # outputs; a file may declare other extents than its outputs have

    def outputs(self, program: ProgramKey) -> dict[str, TensorType]:
        """Specs of the outputs at a program's shapes; extents that no input names are open."""
        template = self.template
        specs = {name: template.spec(value) for name, value in template.outputs.items()}
        return outputs_at(template.inputs, specs, program.specs)

    def layout(self, program: ProgramKey) -> SlotLayout:
        return slot_layout(program.specs, self.outputs(program))

    def results(
        self,
        program: ProgramKey,
        inputs: Tensors,
        instead: Callable[[Tensors], Tensors] | None = None,
    ) -> Tensors:
        """Run, in new tensors.

        Args:
            instead: runs in place of the session, if given.

        Raises:
            PreconditionFailed: the session does not run, or its outputs are of other shapes than
                the import says.
        """
        results = (instead or self.session.run)(inputs)
        for name, spec in self.outputs(program).items():
            if not spec.takes(results[name].shape):
                raise PreconditionFailed(
                    f"output {name!r} is {list(results[name].shape)}, and not "
                    f"{list(spec.shape)} as its import says"
                )
        return results

    def trial(self, program: ProgramKey, inputs: Tensors) -> int:
        """Run once, as ``results``; returns the bytes of outputs whose extents no input names."""
        results, outputs = self.results(program, inputs), self.outputs(program)
        return sum(results[name].nbytes for name, spec in outputs.items() if not spec.is_static)

    def run(
        self,
        program: ProgramKey,
        slot: tuple[Tensors, Mapping[str, Tensor]],
        heap: Heap | None,
        instead: Callable[[Tensors], Tensors] | None = None,
    ) -> None:
        """Run as ``results``, on the views of a slot; open outputs go to the heap."""
        inputs, outputs = slot
        can_bind = instead is None and heap is None and all(map(Tensor.numel, outputs.values()))
        is_bound = can_bind and self.binds
        if is_bound:
            with suppress(PreconditionFailed):
                self.session.run_into(inputs, outputs)
                return
        results = self.results(program, inputs, instead)
        self.binds = self.binds and not is_bound  # it runs without
        for name, spec in self.outputs(program).items():
            if spec.is_static:
                outputs[name].copy_(results[name])
            else:
                assert heap is not None, "a layout with open extents has a heap"
                heap.add_output(array_of(results[name].contiguous()), outputs[name])
