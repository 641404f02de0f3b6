"""What answers a replica's requests in shapes that no schedule was made for.

    request ──> own executable of its class, if that is measured to be faster
         ├────> the same, prepared while the request waits, if that saves time to this one alone
         └────> the session for any shape, or the one side by side     nothing is prepared
         └──there is none, or it does not run──> own executable, prepared while the request waits

When an executable is prepared beside, and which way serves then, is decided in
``braid.core.shapes``, which bounds the bytes that are kept, for all models of a device together.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Any

from braid.core.background import log_unexpected
from braid.core.errors import BraidError, InvalidRequest
from braid.core.inputs import ShapeClass
from braid.core.program import PlanToRun
from braid.core.shapes import Key, ShapeUse, ShapeUses
from braid.core.tensor import TensorType, outputs_at
from braid.server.devices.device import Device
from braid.server.devices.executables import Executable, input_bytes
from braid.server.inference.lengths import elements_of
from braid.server.inference.shape_latencies import ShapeTimes

log = logging.getLogger("braid.replica")


LEAST_BESIDE_S = 0.001
"""Shorter runs gain less from a core of their own than passing them to its thread costs."""


class OtherShapes(ShapeUses[Executable, Executable]):
    """Executables of one replica beside those of its schedules. Belongs to the event loop."""

    def __init__(
        self,
        device: Device,
        specs: tuple[Mapping[str, TensorType], Mapping[str, TensorType]],
        to_run: Callable[[ShapeClass, int], PlanToRun],
        retire: Callable[[Executable], Coroutine[Any, Any, None]],
    ) -> None:
        """``specs``: of inputs and outputs, with symbols. ``to_run``: a class's sequential plan.

        ``retire`` releases an executable, when the last batch that uses it has ended.
        """
        super().__init__(device.shape_memory)
        self._device = device
        self._inputs, self._outputs = specs
        self._to_run = to_run
        self._retire = retire
        self._session: Executable | None = None  # at the shapes that it was tried with
        self._open_s = inf  # that the session took to open
        self._crowded_s = 0.0  # in the session, while another run waited
        self._session_beside: Executable | None = None  # as ``_session``, of runs side by side
        self._is_shut = False
        self._preparing: dict[Key, asyncio.Task[Executable]] = {}
        self._session_times = ShapeTimes()
        self._releasing: set[asyncio.Task[None]] = set()
        self._heap_part = 0.0  # of a run, by the bytes of its inputs; as much as was seen

    @property
    def has_session(self) -> bool:
        return self._session is not None

    @property
    def may_open(self) -> bool:
        return self._session is None and not self._is_shut

    async def open(self, to_run: PlanToRun, part_saved: float | None = None) -> None:
        """Have the device open a session for any shape, by the runtime and a shape of ``to_run``.

        ``part_saved``: of its seconds, that executables are expected to save. Raises
        PreconditionFailed (no runtime takes the model so) or DeviceOutOfMemory.
        """
        begun = perf_counter()
        self._session = await self._device.prepare(to_run)
        self._open_s = perf_counter() - begun
        self._uses.clear()
        self._expect_saved(part_saved)

    def pays_beside(self, seconds: float) -> bool:
        """Count a run in the session while another waited; whether one side by side is worth it.

        It is once such runs have taken as long as opening the session did. Short ones do not count.
        """
        if seconds >= LEAST_BESIDE_S:
            self._crowded_s += seconds
        return self._session is not None and self._crowded_s >= self._open_s

    async def open_beside(self, count: int) -> None:
        """Have the device open a session for ``count`` runs side by side, or raise BraidError."""
        assert self._session is not None
        ready = await self._device.prepare(replace(self._session.to_run, side_by_side=count))
        if self._session is None:  # shut meanwhile
            await self._retire(ready)
        else:
            self._session_beside = ready

    async def shut(self) -> None:
        """Use no session from now on; a run under way is repeated by an executable of its class."""
        sessions = self._session, self._session_beside
        self._session, self._session_beside, self._is_shut = None, None, True
        self._uses.clear()
        for session in sessions:
            if session is not None:
                await self._retire(session)

    async def close(self) -> list[Executable]:
        """Return all executables, which no batch uses any more."""
        await asyncio.gather(*self._preparing.values(), *self._releasing, return_exceptions=True)
        sessions = self._session, self._session_beside
        return [*self._take_all(), *(session for session in sessions if session is not None)]

    def ready(self, key: Key, beside: int = 1) -> Executable | None:
        """Return what runs a batch now, if there is one side by side; None: to be prepared."""
        use, own = self._use(key), self._own.get(key)
        if beside > 1 and use.session is not None and self._session_beside is not None:
            if use.beside is None:
                use.beside = self._at(key, self._session_beside)
            return use.beside
        if own is not None and use.is_owns_turn:
            self._memory.used(self, key)
            return own
        if use.session is None or self._pays_to_wait(key, use):
            return None
        return use.session

    def _may_prepare(self, key: Key) -> bool:
        is_begun = key in self._own or key in self._preparing
        return not is_begun and not self._memory.is_preparing

    def _pays_to_wait(self, key: Key, use: ShapeUse[Executable]) -> bool:
        if not self._may_prepare(key):
            return False
        expected_s = self._session_times.expected_s(_elements(key))
        return expected_s is not None and self._pays_at_once(use, expected_s)

    async def prepared_now(self, key: Key) -> Executable:
        """Return the executable of a class for which nothing is ready, prepared now.

        Where that fails, the session, if there is one. Raises InvalidRequest: the model cannot run
        at these shapes.
        """
        use = self._use(key)
        if use.session is None:
            return await self.own(key)
        self._memory.is_preparing = True
        try:
            return await self.own(key)
        except BraidError as error:
            self._failed(key, error)
            return use.session or await self.own(key)
        finally:
            self._memory.is_preparing = False

    async def own(self, key: Key) -> Executable:
        """The own executable of a class, prepared now if need be; raises InvalidRequest."""
        if refusal := self._use(key).refusal:
            raise InvalidRequest(refusal)
        if (own := self._own.get(key)) is not None:
            self._memory.used(self, key)
            return own
        return await asyncio.shield(self._prepared(key))

    def ran(self, key: Key, ready: Executable, seconds: float) -> None:
        """Learn from a run; has an own executable prepared beside if that would have paid."""
        use, own = self._use(key), self._own.get(key)
        if ready is use.session:
            self._spent(use, seconds)
            self._session_times.observe(_elements(key), seconds, 1)
            if ready.heap_bytes:
                part = ready.heap_bytes / max(1, input_bytes(ready.layout))
                self._heap_part = max(self._heap_part, part)
            if self._may_prepare(key) and self._pays(use):
                self._prepare_beside(key)
        elif ready is own and not use.own_s and not use.session_s:
            expected_s = self._session_times.expected_s(_elements(key))
            if expected_s:
                self._learn_saved(1 - seconds / expected_s)
        if own is not None and ready in (own, use.session):
            self._tried(key, seconds, is_own=ready is own)

    def refuse(self, key: Key, error: BraidError) -> None:
        """Run a class no more in the session, which did not run what its own executable did."""
        facts = {"digest": self._to_run(*key).program.digest, "reason": str(error)}
        log.warning("a shape runs under its own plan only", extra=facts)
        self._use(key).session = None

    def _session_at(self, key: Key) -> Executable | None:
        return None if self._session is None else self._at(key, self._session)

    def _release(self, own: Executable) -> None:
        releasing = asyncio.create_task(self._retire(own))
        self._releasing.add(releasing)
        releasing.add_done_callback(self._releasing.discard)

    def _at(self, key: Key, session: Executable) -> Executable:
        program = self._to_run(*key).program
        outputs = outputs_at(self._inputs, self._outputs, program.specs)
        ready = self._device.at_shapes(session, program, outputs)
        grown_bytes = int(self._heap_part * input_bytes(ready.layout))
        ready.heap_bytes = max(ready.heap_bytes, grown_bytes)
        return ready

    def _prepared(self, key: Key) -> asyncio.Task[Executable]:
        if key not in self._preparing:
            self._preparing[key] = asyncio.create_task(self._prepare(key))
            self._preparing[key].add_done_callback(log_unexpected)
        return self._preparing[key]

    async def _prepare(self, key: Key) -> Executable:
        try:
            session = self._use(key).session
            ready = await self._device.prepare(self._to_run(*key), like=session)
        except InvalidRequest as error:
            self._use(key).refusal = str(error)
            raise
        except BaseException:
            self._use(key).may_wait = False
            raise
        finally:
            del self._preparing[key]
        self._keep(key, ready, ready.size_bytes, ready.work_s)
        return ready

    def _prepare_beside(self, key: Key) -> None:
        self._memory.is_preparing = True
        self._prepared(key).add_done_callback(lambda task: self._prepared_beside(key, task))

    def _prepared_beside(self, key: Key, task: asyncio.Task[Executable]) -> None:
        self._memory.is_preparing = False
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(key, error)


def _elements(key: Key) -> int:
    shape_class, batch_size = key
    return elements_of(shape_class) * batch_size
