"""Page-locked memory between the callers' tensors and the device, and the copies through it.

    tensor ─memcpy─> pinned ─copy─> static input ... output ─copy─> pinned ──> the caller
    tensor of a request ────────┘

The memory that requests come in is page-locked itself: their tensors are not staged.
While a replay is under way the static inputs are in use. The next run's inputs then travel on a
stream of their own into a *landing* beside them, and are moved over, which is quick from device to
device, when the replay is done.
"""

from collections.abc import Collection, Mapping
from ctypes import memmove
from dataclasses import dataclass, field

from torch import Tensor

from braid.core.graph import OpGraph
from braid.core.tensor import TensorType
from braid.engine.cuda.driver.interface import ORIGIN, Driver, Event, Stream
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.runtime.arrays import static_shape

Tensors = Mapping[str, Tensor]


def static_buffers(driver: Driver, specs: Mapping[str, TensorType]) -> dict[str, Tensor]:
    """Device memory for each tensor, of zeros: legal indices wherever a kernel reads them."""
    return {
        name: driver.empty(static_shape(spec), torch_dtype(spec.dtype)).zero_()
        for name, spec in specs.items()
    }


@dataclass(slots=True, eq=False)
class Staging:
    """Host memory of one run at a time, and the event that says its outputs have arrived."""

    inputs: Tensors
    outputs: Tensors
    done: Event
    busy: bool = False  # from the start of a run until its results are taken
    landing: dict[str, Tensor] = field(default_factory=dict)  # made when first wanted

    def make_landing(self, like: Tensors, driver: Driver) -> None:
        """Take device memory, of the origin stream, for inputs that arrive early."""
        self.landing = {name: driver.empty(t.shape, t.dtype) for name, t in like.items()}

    def upload(
        self,
        given: Tensors,
        targets: Tensors,
        driver: Driver,
        stream: Stream,
        page_locked: Collection[range] = (),
    ) -> None:
        """Copies one tensor while the next is staged; those within ``page_locked`` are not."""
        for name, staged in self.inputs.items():
            source = given[name].contiguous()
            if source.dtype != staged.dtype or source.shape != staged.shape:
                raise ValueError(
                    f"an input is {source.dtype} {tuple(source.shape)}, not as the plan's"
                )
            if not _lies_in(page_locked, source):
                # On this thread alone: ``Tensor.copy_`` shares images out to OpenMP's threads, and
                # where other processes want their cores, waits for the last by milliseconds.
                memmove(staged.data_ptr(), source.data_ptr(), source.nbytes)
                source = staged
            driver.copy(targets[name], source, stream)

    def download(self, sources: Tensors, driver: Driver, stream: Stream) -> None:
        """Copy results to the host, and let ``done`` stand for their arrival."""
        for name, staged in self.outputs.items():
            driver.copy(staged, sources[name], stream)
        driver.record(self.done, stream)


def make_staging(driver: Driver, graph: OpGraph) -> Staging:
    outputs = {name: graph.spec(value) for name, value in graph.outputs.items()}
    return Staging(_pinned(driver, graph.inputs), _pinned(driver, outputs), driver.event())


def resident(driver: Driver, graph: OpGraph, inputs: Tensors) -> dict[str, Tensor]:
    buffers = static_buffers(driver, graph.inputs)
    make_staging(driver, graph).upload(inputs, buffers, driver, driver.stream(ORIGIN))
    driver.synchronise()
    return buffers


def _lies_in(memory: Collection[range], tensor: Tensor) -> bool:
    first = tensor.data_ptr()
    return any(first in held and first + tensor.nbytes <= held.stop for held in memory)


def _pinned(driver: Driver, specs: Mapping[str, TensorType]) -> dict[str, Tensor]:
    return {
        name: driver.pinned(static_shape(spec), torch_dtype(spec.dtype))
        for name, spec in specs.items()
    }
