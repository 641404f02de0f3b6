"""Preparing a plan: warm up, order, capture into one graph; or ready for eager streams.

    calls ──warm_up──> aliases ──release_points, lower──> commands ──capture──> PreparedPlan

Everything is done by one thread. Requests go first between the units of the warm-up, and nothing
else uses the device while it captures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from braid.engine.cuda.driver.faults import (
    CaptureFailed,
    classified,
    classify,
    first_line,
    without_frames,
)
from braid.engine.cuda.driver.interface import ORIGIN, Driver, Graph, Pool, Stream
from braid.engine.cuda.graphs.calls import StreamCall
from braid.engine.cuda.graphs.commands import CommandList, lower, order_calls
from braid.engine.cuda.graphs.issue import issue, warm_up
from braid.engine.cuda.graphs.release import release_points
from braid.engine.cuda.graphs.staging import Staging, static_buffers
from braid.engine.program.program import Environment, Program
from braid.engine.runtime.yielding import YieldToRequests, no_pause


@dataclass(slots=True, eq=False)
class PreparedPlan:
    """A program under a plan, ready to run."""

    program: Program
    commands: CommandList
    streams: tuple[Stream, ...]
    inputs: dict[str, Tensor]  # static: the graph reads them in place
    graph: Graph | None = None
    outputs: dict[str, Tensor] = field(default_factory=dict)  # static: each replay fills them
    eager_because: str = ""  # why there is no graph
    peak_bytes: int = 0  # of its tensors while it was captured, inputs included; 0 if it was not
    staging: list[Staging] = field(default_factory=list)  # used in turns
    started: int = 0

    @property
    def underway(self) -> int:
        return sum(staging.busy for staging in self.staging)


def prepare_calls(
    driver: Driver,
    pool: Pool,
    program: Program,
    calls: tuple[StreamCall, ...],
    pause: YieldToRequests = no_pause,
) -> PreparedPlan:
    """Capture calls in launch order; where that fails, keep the reason for eager streams."""
    streams = _streams(driver, calls)
    before_bytes = driver.memory().allocated
    inputs = static_buffers(driver, program.graph.inputs)
    input_bytes = driver.memory().allocated - before_bytes
    driver.synchronise()  # these, and constants that may still be on their way on any stream
    env = program.environment(inputs)
    aliases = warm_up(calls, env, driver, streams, program.kept(), pause)
    results(driver, program, env, streams[ORIGIN])
    driver.synchronise()
    del env  # and with it what its tensors hold
    order = order_calls(calls)
    commands = lower(calls, order, release_points(calls, order, aliases, program.kept()))
    prepared = PreparedPlan(program, commands, streams, inputs)
    driver.reset_peak()
    warmed = driver.memory()
    try:
        _capture(driver, pool, prepared)
    except CaptureFailed as failure:
        prepared.eager_because = failure.reason
        prepared.streams = _streams(driver, calls)  # run() begins on the usual origin
    else:
        # The warm-up made what is not the plan's: workspaces of cuBLAS, 32 MiB a stream on some
        # GPUs, and weights in the layouts of their kernels.
        prepared.peak_bytes = driver.memory().peak_allocated - warmed.allocated + input_bytes
    return prepared


def _streams(driver: Driver, calls: tuple[StreamCall, ...]) -> tuple[Stream, ...]:
    count = 1 + max((call.stream for call in calls), default=ORIGIN)
    return tuple(driver.stream(index) for index in range(count))


def _capture(driver: Driver, pool: Pool, prepared: PreparedPlan) -> None:
    env = prepared.program.environment(prepared.inputs)
    with capturing(driver, prepared.streams, pool) as captured:
        issue(prepared.commands, env, driver, prepared.streams)
        prepared.outputs = results(driver, prepared.program, env, prepared.streams[ORIGIN])
    prepared.graph = captured[0]


def results(
    driver: Driver, program: Program, env: Environment, origin: Stream
) -> dict[str, Tensor]:
    """The graph's outputs after a run, dense, so that they leave the device in one piece."""
    return {
        name: tensor
        if tensor.is_contiguous()
        else driver.launch(origin, Tensor.contiguous, [tensor])[0]
        for name, tensor in program.results(env).items()
    }


@contextmanager
def capturing(driver: Driver, streams: tuple[Stream, ...], pool: Pool) -> Iterator[list[Graph]]:
    """Capture what is put on ``streams`` inside; the graph is in the list afterwards.

    Raises ``CaptureFailed``, ``DeviceOutOfMemory`` or ``DeviceLost``, and leaves nothing behind.
    """
    captured: list[Graph] = []
    with classified("capturing a CUDA graph"):
        try:
            driver.begin_capture(streams[ORIGIN], pool)
            yield captured
            captured.append(driver.end_capture())
        except BaseException as error:
            driver.abort_capture(streams)
            if isinstance(error, RuntimeError) and classify(error, "") is None:
                # What ran before the capture fails in it: libraries do not all say why.
                raise CaptureFailed(first_line(error)) from without_frames(error)
            raise
