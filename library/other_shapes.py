"""What runs a network in shapes that it was not compiled for.

    call ──> own executable of its class, if that is measured to be faster
       └───> the session for any shape                               nothing is prepared
       └──there is none, or it does not run──> own executable, prepared in the call

As in a server (``braid.server.inference.other_shapes``), but nothing happens beside the calls: the
call that makes an executable pay prepares it.
"""

import logging
from functools import partial
from time import perf_counter

from braid.core.errors import (
    BraidError,
    DeviceOutOfMemory,
    InvalidArtefact,
    PreconditionFailed,
)
from braid.core.program import PlanToRun, ProgramKey
from braid.core.runtimes import ONNXRUNTIME
from braid.core.shapes import Key, ShapeUses
from braid.engine.passes.specialise import interpreted
from braid.engine.runtime.arrays import Arrays, are_finite
from braid.engine.worker.any_shape import AnyShape
from braid.engine.worker.models import seeded_inputs
from braid.library.compiled import Compiled
from braid.library.device_thread import DeviceThread, Executable

log = logging.getLogger("braid.library")


class OtherShapes(ShapeUses[ProgramKey, Executable]):
    """The session and the executables of one network. Used in the device thread only."""

    def __init__(self, device: DeviceThread, compiled: Compiled) -> None:
        super().__init__(device.shape_memory)
        self.takes_rows = False  # all of a call at once, as the session does
        self._device = device
        self._compiled = compiled
        self._session: AnyShape | None = None

    def open(self) -> None:
        """Open a session if ONNX Runtime was right in the schedules, or in the import without them.

        None where it does not take the model.
        """
        imported, models = self._compiled.imported, self._device.models
        schedules = self._compiled.schedules.values()
        verdicts = {schedule.was_right_in(ONNXRUNTIME) for schedule in schedules}
        is_right = True in verdicts or imported.is_onnxruntime_right
        is_right = is_right and False not in verdicts
        if not is_right or not models.model(imported.digest).takes_any_shape:
            return
        try:
            to_run = PlanToRun(imported.program(1), runtime=ONNXRUNTIME, any_shape=True)
            (self._session,) = models.open_any_shape(to_run)
        except (DeviceOutOfMemory, PreconditionFailed, InvalidArtefact) as error:
            facts = {"digest": imported.digest, "reason": str(error)}
            log.warning("new shapes are prepared in calls", extra=facts)
            return
        parts = [s.part_saved_from(ONNXRUNTIME) for s in self._compiled.schedules.values()]
        self._expect_saved(next((part for part in parts if part is not None), None))
        batch = imported.report.batch
        if batch is not None and not batch.alone:
            self.takes_rows = self._takes(imported.program(2))

    def _takes(self, program: ProgramKey) -> bool:
        assert self._session is not None
        models = self._device.models
        graph, _ = models.static(program)
        try:
            self._session.trial(program, seeded_inputs(graph, models.content(program), 0))
        except PreconditionFailed:  # the file says one row
            return False
        return True

    @property
    def has_session(self) -> bool:
        return self._session is not None

    def close(self) -> None:
        self._session = None
        for executable in self._take_all():
            self._release(executable)

    def run(self, key: Key, given: Arrays) -> Arrays:
        """Run all inputs of a class; the outputs are the device thread's.

        Raises InvalidRequest: the model cannot run at these shapes, or on these values.
        """
        use = self._use(key)
        if use.session is None or (key in self._own and use.is_owns_turn):
            return self._run_own(key, given)
        try:
            return self._run_session(key, use.session, given)
        except PreconditionFailed as error:
            results = self._run_own(key, given)
            facts = {"digest": use.session.digest, "reason": str(error)}
            log.warning("a shape runs under its own plan only", extra=facts)
            use.session = None
            return results

    def _session_at(self, key: Key) -> ProgramKey | None:
        return None if self._session is None else self._compiled.to_run(*key).program

    def _release(self, own: Executable) -> None:
        self._device.release(own)

    def _run_session(self, key: Key, program: ProgramKey, given: Arrays) -> Arrays:
        """Run a class in the session; then prepares an executable if that would have paid."""
        assert self._session is not None, "no class has a session without it"
        began_s, instead = perf_counter(), None
        if not are_finite(given):
            instead = partial(interpreted, *self._device.models.static(program))
        results = self._session.results(program, given, instead)
        seconds, use = perf_counter() - began_s, self._use(key)
        self._spent(use, seconds)
        if key in self._own:
            self._tried(key, seconds, is_own=False)
        elif self._pays(use):
            try:
                self._prepare(key)
            except BraidError as error:  # the call is answered
                self._failed(key, error)
        return results

    def _run_own(self, key: Key, given: Arrays) -> Arrays:
        own = self._own.get(key) or self._prepare(key)
        self._memory.used(self, key)
        began_s = perf_counter()
        inputs = {name: given[name] for name in own.ready.program.graph.inputs}
        results = own.run(self._device.backend, inputs, own.new_outputs())
        self._tried(key, perf_counter() - began_s, is_own=True)
        return results

    def _prepare(self, key: Key) -> Executable:
        began_s = perf_counter()
        own = self._device.prepare(self._compiled.to_run(*key))
        self._keep(key, own, self._device.models.size_bytes(own.ready), perf_counter() - began_s)
        return own
