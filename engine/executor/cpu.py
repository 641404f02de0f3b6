"""Runs laid-out plans on CPU: one Python thread a lane, each with its own intra-op threads.

torch operators release the GIL, so lanes overlap. With OpenMP the number of intra-op threads is
a property of the calling thread: lane 0 is the caller, lanes 1.. are helper threads that sleep
on a queue between segments.

States of a helper: waiting (on a queue) ──segment──> running ──done──> waiting; or closed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

import torch
from torch import Tensor

from engine.executor.lanes import Segment, Step
from engine.executor.program import Environment, Program


class CpuExecutor:
    """Owns the helper threads of one CPU device. One run at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._helpers = [_Helper(lane) for lane in range(1, threads)]
        self._intra_op = 0

    def run(
        self, program: Program, segments: Sequence[Segment], inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Run the whole graph.

        Args:
            program: the bound units.
            segments: ``lanes.lay_out`` of a verified plan.
            inputs: one tensor for each of ``program.graph.inputs``.

        Returns:
            The graph's outputs by name; they may share memory with the inputs.
        """
        env = program.environment(inputs)
        for segment in segments:
            self.run_segment(segment, env)
        return program.results(env)

    def run_segment(self, segment: Segment, env: Environment) -> None:
        """Run one segment on the slots of ``env`` and wait for all its lanes."""
        if segment.threads[0] != self._intra_op:
            self._intra_op = segment.threads[0]
            torch.set_num_threads(self._intra_op)
        if len(segment.lanes) == 1:
            run_steps(segment.lanes[0], env, {})
            return
        events = {unit: threading.Event() for unit in segment.signals}
        helpers = self._helpers[: len(segment.lanes) - 1]
        for helper, lane, count in zip(
            helpers, segment.lanes[1:], segment.threads[1:], strict=True
        ):
            helper.start_steps(lane, count, env, events)
        failure: BaseException | None = None
        try:
            run_steps(segment.lanes[0], env, events)
        except BaseException as error:
            failure = error
            _release_waiters(events)
        for helper in helpers:
            late = helper.join_steps()
            failure = failure or late
        if failure is not None:
            raise failure
        for slot in segment.releases:
            env[slot] = None

    def close(self) -> None:
        """End the helper threads."""
        for helper in self._helpers:
            helper.close()


def run_steps(
    steps: Sequence[Step], env: Environment, events: Mapping[int, threading.Event]
) -> None:
    """Run one lane."""
    for step in steps:
        for other in step.waits:
            events[other].wait()
        unit = step.unit
        result = unit.kernel(*[env[slot] for slot in unit.inputs])
        if isinstance(result, Tensor):
            env[unit.outputs[0]] = result
        else:
            for slot, tensor in zip(unit.outputs, result, strict=True):
                env[slot] = tensor
        for slot in step.releases:
            env[slot] = None
        if step.signals is not None:
            events[step.signals].set()


def _release_waiters(events: Mapping[int, threading.Event]) -> None:
    """After a failure, let the other lanes run into their own error instead of waiting for ever."""
    for event in events.values():
        event.set()


_Work = tuple[Sequence[Step], int, Environment, Mapping[int, threading.Event]]


class _Helper:
    """A thread that runs one lane at a time."""

    def __init__(self, lane: int) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"lane-{lane}", daemon=True)
        self._thread.start()

    def start_steps(
        self,
        steps: Sequence[Step],
        threads: int,
        env: Environment,
        events: Mapping[int, threading.Event],
    ) -> None:
        self._work.put((steps, threads, env, events))

    def join_steps(self) -> BaseException | None:
        return self._done.get()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    @torch.inference_mode()
    def _loop(self) -> None:
        intra_op = 0
        while (work := self._work.get()) is not None:
            steps, threads, env, events = work
            if threads != intra_op:
                intra_op = threads
                torch.set_num_threads(threads)
            try:
                run_steps(steps, env, events)
            except BaseException as error:
                _release_waiters(events)
                self._done.put(error)
            else:
                self._done.put(None)
            del work, steps, env, events
