"""A whole model in another runtime, for runs at shapes that nothing was prepared for.

slot ──views at the shapes of the run──> session ──> slot, or its heap where no input says an
                                                     output's extents

The front end lays a slot out by the shapes of a request, and each run says them. So a new shape
costs no call, no graph and no kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from braid.core.errors import PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.program import ProgramKey
from braid.core.tensor import outputs_at
from braid.engine.device import DevicePart
from braid.engine.link.shared_memory import SlotLayout, slot_layout
from braid.engine.program.engines import Constant, Whole
from braid.engine.program.onnxruntime_session import check_division
from braid.engine.runtime.arrays import Arrays
from braid.engine.worker.heap_runs import Heap

MAX_LAYOUTS = 512  # programs whose slots are remembered


def check_any_division(template: OpGraph, graph: OpGraph, constant: Constant) -> None:
    """As ``check_division``, for all that the model may run, not only one static graph of it."""
    check_division(graph, constant)
    for operator in template.operators:
        for branch in operator.branches:
            if any(unit.kind == "aten.div" or unit.branches for unit in branch.operators):
                raise PreconditionFailed(
                    f"a branch of {operator.name!r} may divide integers, which was not tried"
                )


@dataclass(frozen=True, slots=True, eq=False)
class AnyShape:
    """A session, ready for any shape of its model."""

    digest: str
    template: OpGraph
    session: Whole
    place: DevicePart | None = None  # where it runs; None: on all of the device
    _layouts: dict[ProgramKey, SlotLayout] = field(default_factory=dict)

    def layout(self, program: ProgramKey) -> SlotLayout:
        """Slot of a program; extents of outputs that no input names are open."""
        layout = self._layouts.get(program)
        if layout is None:
            template = self.template
            specs = {name: template.spec(value) for name, value in template.outputs.items()}
            outputs = outputs_at(template.inputs, specs, program.specs)
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[program] = slot_layout(program.specs, outputs)
        return layout

    def results(
        self,
        program: ProgramKey,
        inputs: Arrays,
        instead: Callable[[Arrays], Arrays] | None = None,
    ) -> Arrays:
        """Run, in new arrays; ``instead`` of the session, if given.

        Raises ``PreconditionFailed`` if that fails, or outputs are of other shapes than at import.
        """
        results = (instead or self.session.run)(inputs)
        for name, place in self.layout(program).outputs.items():
            if not place.spec.takes(results[name].shape):
                raise PreconditionFailed(
                    f"output {name!r} is {list(results[name].shape)}, and not "
                    f"{list(place.spec.shape)} as its import says"
                )
        return results

    def trial(self, program: ProgramKey, inputs: Arrays) -> int:
        """Run once, as ``results``; returns the bytes of outputs whose extents no input names."""
        results, places = self.results(program, inputs), self.layout(program).outputs.items()
        return sum(results[name].nbytes for name, place in places if not place.spec.is_static)

    def run(
        self,
        program: ProgramKey,
        inputs: Arrays,
        outputs: Arrays,
        heap: Heap | None,
        instead: Callable[[Arrays], Arrays] | None = None,
    ) -> None:
        if instead is None and heap is None and all(array.size for array in outputs.values()):
            self.session.run_into(inputs, outputs)
            return
        results = self.results(program, inputs, instead)
        for name, place in self.layout(program).outputs.items():
            if place.spec.is_static:
                outputs[name][...] = results[name]
            else:
                assert heap is not None, "a layout with open extents has a heap"
                heap.add_output(results[name], outputs[name])
