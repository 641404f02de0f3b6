"""Histories of the job runner that hypothesis thinks up, one answer at a time, on a fake clock.

Models are registered, loaded, unloaded, deleted, profiled again; jobs are cancelled; importers,
workers and planners answer late, fail or die; plans are refused; the server stops and starts.
Whatever the order: every job ends exactly once, a version has at most one, the numbers by state
are right, and none waits while nothing is asked of anybody.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from braid.core.errors import (
    BraidError,
    InvalidArtefact,
    InvalidRequest,
    ModelImportError,
    Unavailable,
)
from braid.core.keyed_locks import KeyedLocks
from braid.core.schedule import Schedule
from braid.server.jobs.imports import MemoryBudget
from braid.server.models.loading import ModelLoader
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import JobRecord, ModelStatus, ModelVersion
from tests.server.jobs.fakes import AtOnce, FakeServingModels, Server

T = TypeVar("T")

NAMES = ("a", "b")
SIZES: Sequence[tuple[int, ...]] = ((1,), (1, 4))
MOST_JOBS, MOST_STARTS = 12, 3
ENOUGH_TURNS = 60  # of the event loop, for everything that waits for no answer to happen
ENOUGH_ANSWERS = 6000  # to end all jobs here, and those that come meanwhile
IN_WORKER = ("load", "measure", "compare", "swap")

names, numbers = st.sampled_from(NAMES), st.integers(0, 1000)
contents = st.sampled_from((b"1", b"2", b"3"))


@dataclass(eq=False)
class Call:
    """Something that a job asked of another process, or of the clock."""

    kind: str
    answer: asyncio.Future[None]
    due: float = 0.0  # at which time a sleep ends


class Outside:
    """All that jobs wait for, and a clock."""

    def __init__(self) -> None:
        self.waiting: list[Call] = []
        self.now = 0.0
        self.fails: Callable[[str], Exception | None] = lambda kind: None

    async def ask(self, kind: str, seconds: float = 0.0) -> None:
        """Wait for an answer, which may be an error."""
        answer = asyncio.get_running_loop().create_future()
        call = Call(kind, answer, self.now + seconds)
        self.waiting.append(call)
        try:
            await answer
        finally:
            self.waiting.remove(call)

    def calls(self, *kinds: str) -> list[Call]:
        return [
            call
            for call in self.waiting
            if not call.answer.done() and (call.kind in kinds or not kinds)
        ]


def end(call: Call, error: Exception | None = None) -> None:
    if error is None:
        call.answer.set_result(None)
    else:
        call.answer.set_exception(error)


REFUSALS: dict[str, type[BraidError]] = {
    "import": ModelImportError,
    "load": InvalidRequest,
    "measure": InvalidRequest,
    "compare": InvalidRequest,
    "plan": InvalidRequest,
    "swap": InvalidArtefact,
}


class Models(FakeServingModels):
    """Models that answer, as far as jobs and loads look at them."""

    def __init__(self, outside: Outside) -> None:
        super().__init__()
        self.turns = KeyedLocks()
        self._outside = outside

    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        await self._outside.ask("swap")
        await super().swap(model, device, schedule)

    def served_version(self, name: str, version: int) -> object | None:
        return self if (name, version) in self.serving else None

    def is_away(self, name: str, version: int) -> bool:
        return False  # nothing leaves memory

    def is_coming(self, name: str, version: int) -> bool:
        return False

    def for_request(self, name: str, version: str) -> SimpleNamespace:
        def refuse() -> None:
            raise InvalidRequest(f"{name} {version} has failed")

        return SimpleNamespace(require=refuse)

    async def remove(self, name: str, version: int) -> None:
        self.serving.discard((name, version))
        self.known.pop((name, version), None)


class RunnerMachine(RuleBasedStateMachine):
    """A job server over fakes and a real store, stopped and started now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.loop.get_loop().set_default_executor(AtOnce())
        self.outside = Outside()
        self.callers: list[asyncio.Task[Any]] = []
        self.ends: Counter[str] = Counter()  # stored, by job
        self.ended: dict[str, JobRecord] = {}  # as first seen
        self.jobs: dict[str, JobRecord] = {}  # as seen last
        self.registered = self.starts = 0
        self.run(self.begin())

    async def begin(self) -> None:
        self.starts += 1
        self.server = server = Server(Path(self.folder.name) / "store")
        server.store._thread.shutdown()
        server.store._thread = AtOnce()
        ask = self.outside.ask
        server.importer.places = MemoryBudget(total_bytes=2, at_once=2)
        server.importer.gate = self.gate("import")
        server.device.gate = self.gate("measure")
        server.device.before_loading = partial(ask, "load")
        server.device.before_comparing = partial(ask, "compare")
        server.planner.before_planning = partial(ask, "plan")
        object.__setattr__(server.services.retry_pauses, "sleep", partial(ask, "sleep"))
        server.models = Models(self.outside)
        object.__setattr__(server.services, "models", server.models)
        end_job = server.store.end_job

        def count_end(job: JobRecord) -> ModelVersion | None:
            self.ends[job.id] += 1
            return end_job(job)

        server.store.end_job = count_end  # type: ignore[method-assign]
        self.models = cast(ServingModels, server.models)
        self.loader = ModelLoader(server.store, server.runner, self.models, 1000)
        for model in server.store.models():
            server.models.register(model)
            if model.state is ModelStatus.SERVING:
                server.models.serving.add((model.name, model.version))
        await server.runner.start()

    def gate(self, kind: str) -> asyncio.Event:
        """What a fake waits for as if it were an event."""
        return cast(asyncio.Event, SimpleNamespace(wait=partial(self.outside.ask, kind)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def then_settle() -> T:
            result = await work
            for _ in range(ENOUGH_TURNS):
                await asyncio.sleep(0)
            return result

        return self.loop.run(then_settle())

    def call(self, work: Coroutine[Any, Any, object]) -> None:
        """Let a caller call; what it waits for may come much later."""

        async def begin() -> None:
            self.callers.append(asyncio.create_task(work))

        self.run(begin())

    # What callers do.

    @precondition(lambda self: self.registered < MOST_JOBS)
    @rule(name=names, content=contents, sizes=st.sampled_from(SIZES))
    def register(self, name: str, content: bytes, sizes: tuple[int, ...]) -> None:
        self.registered += 1
        self.call(self.server.register(name, content, sizes))

    @rule(which=numbers)
    def cancel(self, which: int) -> None:
        if self.jobs:
            job = list(self.jobs)[which % len(self.jobs)]
            self.call(self.server.runner.cancel(job))

    @rule(name=names)
    def unload(self, name: str) -> None:
        self.call(self.loader.unload(name))

    @rule(name=names)
    def load(self, name: str) -> None:
        self.call(self.loader.load(name, {}, None))

    @rule(name=names, which=numbers)
    def set_serving(self, name: str, which: int) -> None:
        """Let one version serve and no other."""
        self.call(self._set_serving(name, which))

    async def _set_serving(self, name: str, which: int) -> None:
        async with self.models.turns.of(name):
            versions = self.server.store.versions(name)
            wanted = versions[which % len(versions)]
            await self.loader.serve_version(wanted)
            for model in versions:
                if model is not wanted:
                    await self.loader.unload_version(model)

    @rule(name=names, which=numbers)
    def delete(self, name: str, which: int) -> None:
        self.call(self._delete(name, which))

    async def _delete(self, name: str, which: int) -> None:
        versions = self.server.store.versions(name)
        number = versions[which % len(versions)].version
        await self.loader.cancel_imports(name, number)
        async with self.models.turns.of(name):
            await self.loader.delete_version(self.server.store.find_model(name, number))

    @rule(name=names, which=numbers)
    def profile_again(self, name: str, which: int) -> None:
        self.call(self._profile_again(name, which))

    async def _profile_again(self, name: str, which: int) -> None:
        versions = self.server.store.versions(name)
        await self.server.runner.schedule_again(name, versions[which % len(versions)].version)

    @precondition(lambda self: any(not each.done() for each in self.callers))
    @rule(which=numbers)
    def go_away(self, which: int) -> None:
        """A caller leaves; what it began goes on."""
        waiting = [each for each in self.callers if not each.done()]
        waiting[which % len(waiting)].cancel()
        self.run(asyncio.sleep(0))

    # What the others do.

    @precondition(lambda self: self.outside.calls(*REFUSALS))
    @rule(which=st.lists(numbers, min_size=1, max_size=12))
    def answer(self, which: list[int]) -> None:
        for number in which:
            if calls := self.outside.calls(*REFUSALS):
                end(calls[number % len(calls)])
                self.run(asyncio.sleep(0))

    @precondition(lambda self: self.outside.calls(*REFUSALS))
    @rule(which=numbers)
    def refuse(self, which: int) -> None:
        calls = self.outside.calls(*REFUSALS)
        call = calls[which % len(calls)]
        end(call, REFUSALS[call.kind]("refused"))
        self.run(asyncio.sleep(0))

    @precondition(lambda self: self.outside.calls("import", "plan"))
    @rule(which=numbers)
    def die(self, which: int) -> None:
        calls = self.outside.calls("import", "plan")
        end(calls[which % len(calls)], Unavailable("killed"))
        self.run(asyncio.sleep(0))

    @rule()
    def lose_the_worker(self) -> None:
        for call in self.outside.calls(*IN_WORKER):
            end(call, Unavailable("the worker died"))
        self.run(asyncio.sleep(0))

    @rule(seconds=st.sampled_from([0.25, 1.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.outside.now += seconds
        for call in self.outside.calls("sleep"):
            if call.due <= self.outside.now:
                end(call)
        self.run(asyncio.sleep(0))

    @precondition(lambda self: self.starts < MOST_STARTS)
    @rule()
    def restart(self) -> None:
        self.run(self.stop())
        self.run(self.begin())

    async def stop(self) -> None:
        await self.server.stop()
        for _ in range(ENOUGH_TURNS):
            await asyncio.sleep(0)
        assert not self.outside.waiting, "somebody is still asked"
        assert all(each.done() for each in self.callers), "a caller holds up the stop"
        for error in await asyncio.gather(*self.callers, return_exceptions=True):
            assert not isinstance(error, Exception) or isinstance(error, BraidError), repr(error)

    # What holds.

    @invariant()
    def all_is_well(self) -> None:
        self.jobs = {job.id: job for job in self.run(self.server.runner.list(limit=1000))}
        for job_id, job in self.jobs.items():
            if job.state.has_ended:
                first = self.ended.setdefault(job_id, job)
                assert (first.state, first.message) == (job.state, job.message)
            assert job_id not in self.ended or job.state.has_ended, "it ended before"
            assert self.ends[job_id] <= 1, "its end was stored twice"
        live = Counter((job.model, job.version) for job in self.unfinished())
        assert not live or max(live.values()) == 1, live
        assert self.server.observer.jobs == Counter(job.state.value for job in self.jobs.values())
        assert self.outside.waiting or not live, f"nobody is asked for {self.unfinished()}"
        for each in self.callers:
            if each.done() and not each.cancelled() and (error := each.exception()):
                assert isinstance(error, BraidError), repr(error)

    def unfinished(self) -> list[JobRecord]:
        return [job for job in self.jobs.values() if not job.state.has_ended]

    def teardown(self) -> None:
        """All jobs end, though others come without pause; oldest answers first."""
        waiting, answers, more = {job.id for job in self.unfinished()}, 0, 0
        while waiting:
            assert answers < ENOUGH_ANSWERS, f"starved: {waiting}"
            for call in self.outside.calls()[:1]:
                end(call)
                answers += 1
            if answers // 40 > more:
                more += 1
                self.call(self.server.register(f"fresh-{more}", b"fresh %d" % more))
            self.run(asyncio.sleep(0))
            self.all_is_well()
            waiting -= set(self.ended)
        self.run(self.stop())
        self.loop.close()
        self.folder.cleanup()


RunnerMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestRunner = RunnerMachine.TestCase
