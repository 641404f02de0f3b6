"""One model of a repository: its versions serve as its folder and configuration ask for.

What is new serves before what is old stops, and what cannot serve leaves what does. Only versions
that the repository put in place are replaced or deleted.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from braid.core.errors import (
    BraidError,
    Draining,
    InvalidRequest,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from braid.core.regular_file import read_file
from braid.server.models.policies import AVAILABLE, VersionPolicies
from braid.server.models.serving_models import ServingModels
from braid.server.models.versions import WHOLE_MODEL
from braid.server.repository.configuration import Configuration, configuration_from_text
from braid.server.repository.folders import CONFIG_FILE, ModelFolder, Stamp, VersionFolder
from braid.server.repository.placing import Placing
from braid.server.store.serving_config import ServingConfig, VersionPolicy
from braid.server.store.store import Store

log = logging.getLogger("braid.repository")

MAX_CONFIG_BYTES = 1 << 20
DO_NOT_SERVE = "files of the repository do not serve"

_Done = tuple[Stamp, Configuration]


@dataclass(frozen=True, slots=True)
class ModelSync:
    """Brings what serves in line with folders. Belongs to the event loop."""

    _store: Store
    _models: ServingModels
    _policies: VersionPolicies
    _placing: Placing
    _devices: Collection[str]
    # What was tried of each version, with whatever end: not again until it changes.
    _done: dict[tuple[str, int], _Done] = field(default_factory=dict)

    async def sync(self, folder: ModelFolder) -> bool:
        """Let a model serve what its folder asks for; says in log and remarks what it cannot.

        Returns True if there is nothing to try again before the folder changes.
        """
        name = folder.name
        try:
            config = await self._placing.reading.run(read_configuration, folder, self._devices)
        except BraidError as error:
            self.note(name, WHOLE_MODEL, f"{CONFIG_FILE} is not applied: {error}")
            return True
        before = self._models.config(name)
        target = self._target(name, config, before)
        wanted = target.versions.select(folder.versions)
        whole = ""
        if not (folder.versions or folder.is_gone):
            whole = "there is no folder of a version (1, 2, ...) in there"
        try:
            is_done, placed = await self._place_all(folder, wanted, config, target)
            await self._apply(folder, target, placed, is_new=target != before)
        except Draining:
            return False
        except BraidError as error:
            is_done, whole = not _passes(error), f"{name} is not as its folder asks for: {error}"
        for noted, version in self._models.remarks.all():
            if noted == name and version not in (WHOLE_MODEL, *wanted):
                self.note(name, version, "")
        if config.warning and not whole:
            passing = "lines of a configuration are passed over"
            self.note(name, WHOLE_MODEL, f"{CONFIG_FILE}: {config.warning}", passing)
        else:
            self.note(name, WHOLE_MODEL, whole)
        return is_done

    def note(self, name: str, version: int, text: str, event: str = DO_NOT_SERVE) -> None:
        """Set the remark on a version, or on a whole model, and log it if it is new."""
        if self._models.remarks.note(name, version, text) and text:
            log.warning(event, extra={"model": name, "version": version or None, "reason": text})

    def _target(self, name: str, config: Configuration, before: ServingConfig) -> ServingConfig:
        """Configuration that a model is to have: its file's, else as it was, else the newest."""
        target = config.serving(before)
        if config.versions is None and (config.is_given or not self._models.knows(name)):
            target = replace(target, versions=VersionPolicy(latest=1))
        return target

    async def _place_all(
        self,
        folder: ModelFolder,
        wanted: Collection[int],
        config: Configuration,
        target: ServingConfig,
    ) -> tuple[bool, set[int]]:
        """Put the wanted versions into service; returns whether all is done, and which are new."""
        name, asked = folder.name, replace(config, versions=None, max_wait_ms=None, passed_over=())
        work = []
        for number in sorted(wanted):
            this = folder.versions[number].stamp, asked
            if self._done.get((name, number)) != this:
                work.append((folder.versions[number], this))
        if not work:
            return True, set()
        serving = await self._available(name)
        if target.versions.specific:  # what serves goes on until all is there
            specific = (*target.versions.specific, *serving)
            target = replace(target, versions=VersionPolicy(specific=specific))
        await self._policies.announce(name, target)
        ends = await asyncio.gather(*(self._place(name, version, asked) for version, _ in work))
        for (version, this), (is_done, _) in zip(work, ends, strict=True):
            if is_done:
                self._done[name, version.number] = this
        changed = {v.number for (v, _), (_, has) in zip(work, ends, strict=True) if has}
        return all(is_done for is_done, _ in ends), changed

    async def _place(
        self, name: str, version: VersionFolder, config: Configuration
    ) -> tuple[bool, bool]:
        """Put one version into service; returns whether that is done, and whether it changed."""
        number = version.number
        try:
            changed = await self._placing.place(name, version, config)
        except (BraidError, OSError) as error:
            if isinstance(error, Draining):
                return False, False
            why = str(error) if isinstance(error, BraidError) else str(error.strerror or error)
            as_before = ""
            if self._models.served_version(name, number) is not None:
                as_before = "; the version serves what it had before"
            self.note(name, number, f"{name}/{number}: {why}{as_before}")
            return not _passes(error), False
        except Exception:
            log.exception("a version of the repository", extra={"model": name, "version": number})
            self.note(name, number, f"{name}/{number}: internal error; the server's log has more")
            return True, False
        self.note(name, number, "")
        if changed:
            log.info("serves from the repository", extra={"model": name, "version": number})
        return True, changed

    async def _apply(
        self, folder: ModelFolder, target: ServingConfig, placed: Collection[int], *, is_new: bool
    ) -> None:
        """Delete the versions whose folders are gone; load and unload as the policy says."""
        name = folder.name
        all_placed = await self._store.call(self._store.placed)
        for number in sorted(v for n, v in all_placed if n == name and v not in folder.versions):
            self._done.pop((name, number), None)
            await self._policies.delete(name, str(number))
            log.info("deleted with its folder", extra={"model": name, "version": number})
            is_new = True
        available = await self._available(name)
        if specific := target.versions.specific:
            able = tuple(number for number in specific if number in available)
            if not able:
                return  # what serves goes on
            target = replace(target, versions=VersionPolicy(specific=able))
        if available and (placed or is_new):
            await self._policies.configure(name, target, placed)

    async def _available(self, name: str) -> set[int]:
        try:
            versions = await self._store.call(self._store.versions, name)
        except NotFound:
            return set()
        return {model.version for model in versions if model.state in AVAILABLE}


def read_configuration(folder: ModelFolder, devices: Collection[str]) -> Configuration:
    """Read a model's config.pbtxt and its labels; blocks. InvalidRequest: it cannot be used."""
    if not folder.config:
        return Configuration()

    def read(name: str) -> bytes:
        try:
            return read_file(folder.path / name, MAX_CONFIG_BYTES)
        except OSError as error:
            raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error

    try:
        text = read(CONFIG_FILE).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("it cannot be read: it is no text in UTF-8") from error
    return configuration_from_text(text, folder.name, devices, read)


def _passes(error: BraidError | OSError) -> bool:
    is_passing = isinstance(error, OSError | ResourceExhausted | Unavailable)
    return is_passing and not isinstance(error, PermissionError)
