"""A folder whose models serve: looked at when it changes, and every half minute.

A file that is still being copied changes from look to look and is left alone until it does not.
What cannot be read, and a repository that is suddenly empty (a volume that went away), changes
nothing. Links, network disks and too few inotify watches hide changes from ``watch``.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, time

from braid.core.background import BackgroundTasks
from braid.core.errors import StartupError
from braid.core.own_threads import OwnThreads
from braid.server.models.serving_models import ServingModels
from braid.server.models.versions import WHOLE_MODEL
from braid.server.repository.folders import ModelFolder, RepositoryContents, Stamp, look_at
from braid.server.repository.model_sync import ModelSync
from braid.server.store.records import ModelStatus

log = logging.getLogger("braid.repository")

SETTLE_S = 1.0
"""Time for which a folder has to stay as it is before its files are read, in seconds."""

LOOK_S = 30.0
"""Time between two looks where no change is reported, in seconds."""


def check_repository(root: Path | None) -> None:
    """Check the folder of the setting, if any, before the start; StartupError: unreadable."""
    if root is None:
        return
    try:
        look_at(root)
    except OSError as error:
        raise StartupError(f"BRAID_MODEL_REPOSITORY={root}: {error.strerror}") from error


@dataclass(slots=True)
class _FolderState:
    """State of one model's folder when it was looked at, and when it was dealt with."""

    stamp: tuple[Stamp, ...] | None = None
    stamp_since: float = 0.0  # since when it looks so, by the monotonic clock
    done: tuple[Stamp, ...] | None = None  # as it was when there was nothing left to do
    retry_at: float = 0.0  # not before, if it looks as it did
    is_busy: bool = False
    is_awaited: bool = False  # it was there at the start, or has answered since
    has_answered: bool = False
    is_broken: bool = False  # does not answer, and will not before its files change


@dataclass(slots=True)
class ModelRepository:
    """A model repository and what it has put into service. Belongs to the event loop."""

    _root: Path
    _sync: ModelSync
    _models: ServingModels
    _on_change: Callable[[], None]  # told when ``missing`` may have changed
    _states: dict[str, _FolderState] = field(default_factory=dict)
    _lines: Mapping[Path, str] = field(default_factory=dict)
    _trouble: str = ""  # logged
    _tasks: BackgroundTasks = field(default_factory=partial(BackgroundTasks, "model repository"))
    _looking: OwnThreads = field(default_factory=partial(OwnThreads, "repository", 1))
    _is_settling: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # to be set after a change

    def missing(self, *, with_broken: bool) -> list[str]:
        """Names of the repository's models that do not answer; not of those unloaded by request.

        Of those that are awaited; ``with_broken``: also those whose files cannot serve.
        """
        awaited = [(name, state) for name, state in self._states.items() if state.is_awaited]
        awaited = [each for each in awaited if with_broken or not each[1].is_broken]
        return sorted(name for name, state in awaited if not self._is_settled(name, state))

    def _is_settled(self, name: str, state: _FolderState) -> bool:
        if self._models.answers(name):
            return True
        states = self._models.states(name)
        if not states:
            return state.has_answered  # deleted by request
        return ModelStatus.UNLOADED in states <= {ModelStatus.UNLOADED, ModelStatus.FAILED}

    async def start(self, placed: set[tuple[str, int]]) -> None:
        """Let all models serve that lie there complete; returns when each does or cannot.

        ``placed``: versions that the repository put in place before the server's restart.
        """
        self._states = {name: _FolderState() for name, _ in placed}
        look = await self._look(is_first=True)
        for name, state in self._states.items():
            state.is_awaited = look is None or name in look.models
        await self._tasks.ended()
        self._on_change()

    async def follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S if self._is_settling else LOOK_S):
                    await self.changed.wait()
            self.changed.clear()
            await self._look()

    def stop(self) -> None:
        """Stop what is under way; jobs go on."""
        self._tasks.cancel()

    async def _look(self, *, is_first: bool = False) -> RepositoryContents | None:
        """Look at the folder, and begin to sync what has changed and settled."""
        self._is_settling = False
        try:
            look = await self._looking.run(look_at, self._root)
        except OSError as error:
            self._say(f"it cannot be read ({error.strerror}); what serves goes on")
            return None
        if not look.models and self._states:
            self._say("it is empty; what serves goes on, as a volume may have gone away")
            return None
        self._say("")
        for path, why in look.lines.items():
            if self._lines.get(path) != why:
                log.warning("not used", extra={"path": str(path), "reason": why})
        self._lines = look.lines
        for name in sorted({*look.models, *self._states}):
            missing = ModelFolder(name, self._root / name, (), {}, is_gone=True)
            self._consider(look.models.get(name, missing), is_first)
        return look

    def _say(self, trouble: str) -> None:
        """Log what is wrong with the folder as a whole, once; "" if nothing is."""
        if trouble and trouble != self._trouble:
            facts = {"folder": str(self._root), "reason": trouble}
            log.warning("the model repository is not followed", extra=facts)
        self._trouble = trouble

    def _consider(self, folder: ModelFolder, is_first: bool) -> None:
        """Begin to sync a model if its folder has changed and settled."""
        state, now = self._states.setdefault(folder.name, _FolderState()), monotonic()
        if folder.unreadable:
            self._sync.note(folder.name, WHOLE_MODEL, f"cannot be read: {folder.unreadable}")
            state.done, state.is_broken = None, True
            return
        if state.is_busy or folder.stamp == state.done:
            self._is_settling |= state.is_busy
            return
        if folder.stamp != state.stamp:
            state.stamp, state.stamp_since, state.retry_at = folder.stamp, now, 0.0
        is_old = is_first and bool(folder.versions) and time() - folder.changed_unix > SETTLE_S
        if now - state.stamp_since < SETTLE_S and not is_old:
            self._is_settling = True
        elif now >= state.retry_at:
            state.is_busy = True
            self._tasks.start(self._run(folder, state))

    async def _run(self, folder: ModelFolder, state: _FolderState) -> None:
        name, is_done = folder.name, False
        try:
            is_done = await self._sync.sync(folder)
        finally:
            state.is_busy = False
            state.done = folder.stamp if is_done else None
            state.retry_at = monotonic() + LOOK_S
            answers = self._models.answers(name)
            state.is_broken = is_done and not answers
            if answers:
                state.is_awaited = state.has_answered = True
            if folder.is_gone and is_done:
                self._states.pop(name, None)
            self._on_change()


QUIET_MS = 50
LONGEST_MS = 400
"""Changes are told once none has come for ``QUIET_MS``, and after ``LONGEST_MS`` in any case."""

AGAIN_S = 30.0


async def watch(folder: Path, tell: Callable[[], None]) -> None:
    """Call ``tell`` after changes anywhere below a folder, until cancelled."""
    # Imported here: servers without a repository need it not.
    from watchfiles import awatch

    is_logged = False
    while True:
        try:
            async for _ in awatch(
                folder,
                watch_filter=None,
                debounce=LONGEST_MS,
                step=QUIET_MS,
                ignore_permission_denied=True,
            ):
                tell()
        except (OSError, RuntimeError) as error:  # watchfiles' own errors are RuntimeErrors
            if not is_logged:
                facts = {"folder": str(folder), "reason": str(error)}
                log.warning("changes are not reported, but looked for", extra=facts)
            is_logged = True
        await asyncio.sleep(AGAIN_S)
