"""One thread of this process that leads the threads of a CPU device and runs all its work.

OpenMP gives each calling thread a team of its own; so all runs of a device come from one thread,
one after the other, whichever threads call. Networks on the same cores share it. A caller gives up
the team that its own torch operators made: beside it the device's would sleep at every barrier.
"""

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from braid.core.errors import InvalidRequest, PreconditionFailed
from braid.core.program import PlanToRun
from braid.core.shapes import ShapeMemory
from braid.engine.device import Backend
from braid.engine.link.options import WorkerOptions
from braid.engine.runtime.arrays import Arrays, empty_of
from braid.engine.runtime.threads import end_team, for_inference
from braid.engine.runtime.yielding import no_pause
from braid.engine.worker.models import ModelTable, ReadyExecutable, seeded_inputs
from braid.engine.worker.process.assembly import cpu_backend
from braid.engine.worker.requests import begin_run


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A plan that is ready to run, at one batch size."""

    number: int  # of the device's table
    ready: ReadyExecutable
    plan_id: str  # as a server answers it

    def new_outputs(self) -> Arrays:
        """Memory for outputs; none where their shapes follow the content."""
        layout = self.ready.layout
        fields = {} if layout.has_heap else layout.outputs
        return {name: empty_of(field.spec) for name, field in fields.items()}

    def run(self, backend: Backend, given: Arrays, outputs: Arrays) -> Arrays:
        """Run on inputs of its graph; in the device thread.

        Returns ``outputs``, filled; where their shapes follow the content, other arrays.
        """
        if self.ready.layout.has_heap:
            return backend.interpret(self.ready.program, given, no_pause)
        return begin_run(backend, self.ready, given, outputs).finish()


T = TypeVar("T")


class _Call:
    """Work for the device thread, and its result."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


class DeviceThread:
    """A CPU device in this process. Its attributes belong to its thread."""

    backend: Backend
    models: ModelTable
    shape_memory: ShapeMemory

    def __init__(self, options: WorkerOptions) -> None:
        """Start the thread, and wait until it has its device."""
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._users: Counter[str] = Counter()  # of models, by digest
        self._numbers = count(1)  # of executables
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="braid-device", daemon=True)
        self._thread.start()
        try:
            self.call(lambda: self._open(options))
        except BaseException:
            self._calls.put(None)
            raise

    def call(self, work: Callable[[], T]) -> T:
        """Result of ``work`` in the thread. PreconditionFailed: the process has been forked."""
        if os.getpid() != self._pid:
            raise PreconditionFailed("a network cannot be used after a fork; compile or load it")
        end_team()
        call = _Call(work)
        self._calls.put(call)
        call.done.acquire()
        if call.error is not None:
            raise call.error
        return cast(T, call.result)

    def close(self) -> None:
        """End the thread after the work that was asked for."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self.call(self.backend.close)
            self._calls.put(None)
            self._thread.join()

    def keep(self, digest: str, artefact: Path) -> None:
        """Load a model, or count one more user of it; in the device thread."""
        self.models.load(digest, artefact)
        self._users[digest] += 1

    def let_go(self, digest: str) -> None:
        """Count one user less of a model, which the last one unloads; in the device thread."""
        self._users[digest] -= 1
        if not self._users[digest]:
            self.models.unload(digest)

    def prepare(self, to_run: PlanToRun) -> Executable:
        """Make a plan of a loaded model ready, and run it once; in the device thread.

        Raises InvalidRequest: the model cannot run at these shapes.
        """
        ready = self.models.executable_of(to_run, None)
        executable = Executable(next(self._numbers), ready, to_run.plan_id)
        if not ready.layout.has_heap:
            content = seeded_inputs(ready.program.graph, self.models.content(to_run.program), 0)
            with suppress(InvalidRequest):  # not every model takes what is made up
                executable.run(self.backend, content, executable.new_outputs())
        self.models.prepare(executable.number, (ready,))
        return executable

    def release(self, executable: Executable) -> None:
        """Give back what ``prepare`` took; in the device thread."""
        self.models.release(executable.number)

    def _open(self, options: WorkerOptions) -> None:
        self.backend = cpu_backend(options)
        self.models = ModelTable(self.backend)
        self.shape_memory = ShapeMemory.part_of(options.memory_bytes)

    @for_inference()
    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.work()
            except BaseException as error:
                call.error = error
            call.done.release()
            del call


class DeviceThreads:
    """Device threads of this process: one for each set of cores, as long as networks use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: dict[tuple[int, tuple[int, ...], bool], tuple[DeviceThread, set[object]]] = {}
        self._pid = os.getpid()

    def use(self, options: WorkerOptions, user: object) -> DeviceThread:
        """Return the device thread of some cores, which ``user`` uses until ``leave``."""
        key = options.threads, options.cores, options.pin_threads
        with self._lock:
            if os.getpid() != self._pid:  # those of the parent did not come along
                self._pool, self._pid = {}, os.getpid()
            if key not in self._pool:
                self._pool[key] = DeviceThread(options), set()
            thread, users = self._pool[key]
            users.add(user)
            return thread

    def leave(self, user: object) -> None:
        """Let a user go; the thread ends with its last user."""
        with self._lock:
            for key, (thread, users) in list(self._pool.items()):
                users.discard(user)
                if not users:
                    del self._pool[key]
                    thread.close()

    def close(self) -> None:
        with self._lock:
            for thread, _ in self._pool.values():
                thread.close()
            self._pool.clear()


DEVICE_THREADS = DeviceThreads()
atexit.register(DEVICE_THREADS.close)
