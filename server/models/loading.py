"""Loading and unloading models by name, for clients that think of the server as a repository.

    unload ──> UNLOADED: stays registered, answers nothing, also after a restart
    load   ──> a registration job: finds artefact and schedules, and makes what is missing

A load returns when the model answers. Scheduling goes on behind it.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from braid.compiler.options import ModelOptions
from braid.core.background import though_callers_leave
from braid.core.errors import BraidError, InvalidUpload, ModelImportError, PreconditionFailed
from braid.server.jobs.runner import JobRunner
from braid.server.models.first_bytes import FirstBytes
from braid.server.models.serving_models import ServingModels
from braid.server.models.versions import WHOLE_MODEL
from braid.server.store.records import ModelStatus, ModelVersion, ReceivedUpload, check_model_name
from braid.server.store.store import Store


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of one model, in the words of the protocol."""

    name: str
    version: int  # WHOLE_MODEL: no version in particular
    state: str  # READY, LOADING, UNLOADING, UNAVAILABLE
    reason: str


BringNow = Callable[[ModelVersion], Awaitable[BraidError | None]]
"""Loads a version that is not in memory; returns why it cannot answer, or None."""


CatchUp = Callable[[str, bool], Awaitable[None]]
"""Lets a model be as other servers of the store have left it; True: the caller has its turn."""


class ModelLoader:
    """Loads and unloads models by name. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        runner: JobRunner,
        models: ServingModels,
        max_upload_bytes: int,
        catch_up: CatchUp | None = None,
        bring: BringNow | None = None,
    ) -> None:
        """``catch_up`` is None on a single server; ``bring`` runs in the turn of its caller."""
        self._bring = bring
        self._catch_up = catch_up
        self._runner = runner
        self._models = models
        self._store = store
        self._max_upload_bytes = max_upload_bytes

    async def index(self, ready_only: bool) -> list[IndexEntry]:
        stored = await self._store.call(self._store.models)
        present = {(model.name, model.version) for model in stored}
        names = {model.name for model in stored}
        entries = [self._entry(model) for model in stored] + [
            IndexEntry(name, version, "UNAVAILABLE", text)
            for (name, version), text in self._models.remarks.all().items()
            if (name, version) not in present and not (version == WHOLE_MODEL and name in names)
        ]
        return [entry for entry in entries if not ready_only or entry.state == "READY"]

    async def ready_to_change(self, name: str) -> None:
        """Wait until the models of the store are restored, and ``name`` is as it is stored."""
        await self._runner.started()
        if self._catch_up is not None:
            await self._catch_up(name, False)

    async def load(
        self, name: str, files: Mapping[int, bytes], options: ModelOptions | None
    ) -> None:
        """Let a model answer; returns when it does. A load that began completes.

        ``files``, by version, are registered first; versions that have these bytes already are
        loaded again. ``options``: what to schedule; without files, of the bytes that answer. Raises
        ModelNotFound, PreconditionFailed (other bytes, or all failed before), or BraidError.
        """
        check_model_name(name)
        await self.ready_to_change(name)
        await though_callers_leave(self._load(name, files, options))

    async def unload(self, name: str) -> None:
        """Let no version answer; requests that were accepted end first. Raises ModelNotFound."""
        await self.ready_to_change(name)
        await though_callers_leave(self._unload(name))

    async def serve_version(self, model: ModelVersion, *, in_memory: bool = False) -> None:
        """Let one registered version answer; does nothing if it does. The caller has the turn.

        With ``in_memory``, one that the next request would load is loaded now.
        """
        is_away = self._models.is_away(model.name, model.version) and not in_memory
        if is_away or self._models.served_version(model.name, model.version) is not None:
            return
        if self._bring is not None and self._models.is_coming(model.name, model.version):
            if (problem := await self._bring(model)) is not None:
                raise problem
        elif model.state is ModelStatus.LOADING:
            for job in await self._runner.list(model.name):
                if job.version == model.version:
                    await self._until_serving(model, job.id)
                    return
        elif model.state is ModelStatus.UNLOADED or self._models.was_not_restored(model):
            await self._run_job(model, model.options, model.version)
        else:
            self._models.for_request(model.name, str(model.version)).require()

    async def cancel_imports(self, name: str, version: int | None) -> None:
        """Cancel the jobs of a version, or of all, that does not serve yet.

        A load that waits for such a job holds the turn of the name until the job ends.
        """
        for model in await self._store.call(self._store.versions, name):
            if model.state is ModelStatus.LOADING and version in (None, model.version):
                await self._runner.cancel_model(name, model.version)

    async def delete_version(self, model: ModelVersion) -> None:
        """End a version's jobs and accepted requests, then remove it; the caller has the turn."""
        name, version = model.name, model.version
        async with self._runner.deleting(name, version):
            await self._set_state(replace(model, state=ModelStatus.DRAINING, message=""))
            await self._runner.cancel_model(name, version)
            await self._models.remove(name, version)
            await self._store.call(self._store.delete_model, name, version)

    async def unload_version(self, model: ModelVersion) -> None:
        """Let one version answer no more; accepted requests end first. The caller has the turn."""
        answers = self._models.served_version(model.name, model.version) is not None
        if not answers and model.state is not ModelStatus.SERVING:  # else it was not restored
            return
        await self._runner.cancel_model(model.name, model.version)
        unloaded = replace(model, state=ModelStatus.UNLOADED, message="")
        await self._set_state(unloaded)
        await self._models.unload(unloaded)

    async def _load(
        self, name: str, files: Mapping[int, bytes], options: ModelOptions | None
    ) -> None:
        async with self._models.turns.of(name):
            for version, content in sorted(files.items()):
                await self._register(name, version, content, options or ModelOptions())
            if not files:
                await self._load_registered(name, options)

    async def _load_registered(self, name: str, options: ModelOptions | None) -> None:
        """Let every version answer that can. BraidError: of the newest version that cannot."""
        present = await self._store.call(self._store.versions, name)
        if options is not None:
            number = self._models.number(name, "")
            newest = next((row for row in present if row.version == number), present[-1])
            if newest.options != options:
                await self._reschedule(newest, options)
                present = await self._store.call(self._store.versions, name)
        able = [model for model in present if not model.state.has_failed]
        errors: list[BraidError] = []
        for model in able or present[-1:]:
            try:
                await self.serve_version(model, in_memory=True)
            except BraidError as error:
                errors.append(error)
        if errors:
            raise errors[-1]

    async def _register(
        self, name: str, version: int, content: bytes, options: ModelOptions
    ) -> None:
        if not content:
            raise InvalidUpload(f"the file of version {version} is empty")
        first = FirstBytes()
        first.take(content)
        first.end()
        async with self._store.receive(self._max_upload_bytes) as upload:
            await upload.write(content)
            received = await upload.finish(None)  # nothing lay between
            registration = await self._runner.register(name, received, options, version)
        if registration.is_new_job:
            await self._until_serving(registration.model, registration.job.id)
        else:
            await self.serve_version(registration.model, in_memory=True)

    async def _reschedule(self, newest: ModelVersion, options: ModelOptions) -> None:
        """Register the newest bytes as a new version with other options; their artefact exists."""
        if newest.state not in (ModelStatus.SERVING, ModelStatus.UNLOADED):
            raise PreconditionFailed(
                f"{newest.name} version {newest.version} is {newest.state.value}; send its file"
            )
        await self._run_job(newest, options)

    async def _run_job(
        self, model: ModelVersion, options: ModelOptions, version: int | None = None
    ) -> None:
        """Register bytes that were imported before, and wait until they answer."""
        received = ReceivedUpload(None, model.sha256, model.size_bytes)
        registration = await self._runner.register(model.name, received, options, version)
        await self._until_serving(registration.model, registration.job.id)

    async def _until_serving(self, model: ModelVersion, job_id: str) -> None:
        message = ""
        async with aclosing(self._runner.watch(job_id)) as changes:
            async for job in changes:
                if self._catch_up is not None and not job.state.is_before_serving:
                    await self._catch_up(model.name, True)  # it may be another server's
                if self._models.served_version(model.name, model.version) is not None:
                    return
                message = job.message
        raise ModelImportError(message)

    async def _unload(self, name: str) -> None:
        async with self._models.turns.of(name):
            for model in await self._store.call(self._store.versions, name):
                if model.state not in (ModelStatus.LOADING, ModelStatus.SERVING):
                    continue
                await self._runner.cancel_model(name, model.version)  # also one not serving yet
                await self.unload_version(model)

    async def _set_state(self, model: ModelVersion) -> None:
        await self._store.call(
            self._store.set_model_state, model.name, model.version, model.state, model.message
        )

    def _entry(self, model: ModelVersion) -> IndexEntry:
        model = self._models.as_seen(model)
        state, reason = _STATES[model.state]
        is_away = self._models.is_away(model.name, model.version)
        if is_away or self._models.served_version(model.name, model.version) is not None:
            state, reason = "READY", ""
        return IndexEntry(model.name, model.version, state, model.message or reason)


_STATES: Mapping[ModelStatus, tuple[str, str]] = {
    ModelStatus.LOADING: ("LOADING", ""),
    ModelStatus.SERVING: ("UNAVAILABLE", "does not serve at present"),
    ModelStatus.FAILED: ("UNAVAILABLE", "failed"),
    ModelStatus.DAMAGED: ("UNAVAILABLE", "damaged"),
    ModelStatus.DRAINING: ("UNLOADING", ""),
    ModelStatus.UNLOADED: ("UNAVAILABLE", "unloaded"),
}
