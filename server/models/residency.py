"""Which models are in memory: the least recently used leave it, and requests bring them back.

A model that is away stays registered and ready: its files, schedules and configuration are in the
store. The order of use is kept in the store's folder, so that a restart loads in that order.

Memory is what workers say that models hold; of one that is not loaded yet it is estimated.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

from braid.core.regular_file import read_file
from braid.core.shapes import PART
from braid.server.devices.pool import Devices
from braid.server.inference.routing import Replicas
from braid.server.jobs.interfaces import Room
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import ON_DEMAND, PINNED

log = logging.getLogger("braid.residency")

LOOK_S = 1.0
KEEP_ORDER_S = 30.0
ORDER_FILE = "order-of-use.json"
_BEING_WRITTEN = ".new"
_MOST_BYTES = 1 << 24  # of that file

LIBRARIES_BYTES = 384 << 20
"""Part of a worker's memory that no model can have: libraries, and freed memory that is kept."""

ESTIMATE_FACTOR = 2
"""Bytes in memory for one of a model's file: its weights as stored, and as kernels want them."""

ESTIMATE_BYTES = 8 << 20


class Residency(Room):
    """Puts models away, and knows for which there is room. Belongs to the event loop."""

    def __init__(
        self, idle_s: float, models: ServingModels, devices: Devices, folder: Path
    ) -> None:
        """``idle_s``: of models without a time of their own."""
        self._idle_s = idle_s
        self._models = models
        self._devices = devices
        self._order_file = folder / ORDER_FILE
        self._order = _read_order(self._order_file)
        self._kept_order: list[str] = []
        self._loading: Counter[str] = Counter()  # by digest: loads under way
        self._held: dict[tuple[str, str], int] = {}  # by device and digest, as it was last
        self._making_room = asyncio.Lock()

    @asynccontextmanager
    async def room_for(self, model: ModelVersion) -> AsyncIterator[None]:
        digest = model.artefact
        async with self._making_room:
            self._loading[digest] += 1
            while not self._fits(digest, model) and await self.more(model):
                pass
        try:
            yield
        finally:
            self._loading[digest] -= 1
            if not self._loading[digest]:
                del self._loading[digest]

    async def more(self, model: ModelVersion) -> bool:
        """Unload the version that was used least recently, but for ``model``'s; False: none."""
        others = [
            (replicas.used_at, row)
            for row, replicas in self._present()
            if row.artefact != model.artefact
            and self._models.config(row.name).residency.kind != PINNED
        ]
        if not others:
            return False
        _, oldest = min(others, key=lambda pair: pair[0])
        await self._put_away(oldest, "memory is needed")
        return True

    def has_room(self, model: ModelVersion) -> bool:
        return self._fits(model.artefact, model)

    def is_wanted(self, model: ModelVersion) -> bool:
        return self._models.config(model.name).residency.kind != ON_DEMAND

    def place_in_order(self, model: ModelVersion) -> int:
        """Place in the order of use before the restart, the last used first."""
        return self._order.get(_text(model), len(self._order))

    async def run(self) -> None:
        """Put away what is idle, and keep the order of use, until cancelled."""
        since_kept = 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            now = monotonic()
            for row, replicas in self._present():
                residency = self._models.config(row.name).residency
                idle_s = residency.idle_s or self._idle_s
                if residency.kind == ON_DEMAND and now - replicas.used_at >= idle_s:
                    await self._put_away(row, f"no request for {idle_s:g} s")
            since_kept += LOOK_S
            if since_kept >= KEEP_ORDER_S:
                since_kept = 0.0
                await self.keep_order()

    async def keep_order(self) -> None:
        """Write the order of use; without room on the disk, the one before stays."""
        used = sorted(self._present(), key=lambda pair: -pair[1].used_at)
        order = list(dict.fromkeys([*(_text(row) for row, _ in used), *self._order]))
        rows = [row for row, _ in self._models.versions()]
        known, digests = {_text(row) for row in rows}, {row.artefact for row in rows}
        self._held = {key: size for key, size in self._held.items() if key[1] in digests}
        order = [name for name in order if name in known]
        if order != self._kept_order:
            self._kept_order = order
            self._order = {name: place for place, name in enumerate(order)}
            with suppress(OSError):
                await asyncio.to_thread(_write_order, self._order_file, order)

    def _present(self) -> list[tuple[ModelVersion, Replicas]]:
        return [(replicas.any.model, replicas) for replicas in self._models.present_versions()]

    async def _put_away(self, row: ModelVersion, reason: str) -> None:
        if self._models.served_version(row.name, row.version) is None:
            return
        self._remember()
        facts = {"model": row.name, "version": row.version, "reason": reason}
        log.info("a model leaves memory", extra=facts)
        self._order = {_text(row): -1, **self._order}
        await self._models.put_away(row)

    def _remember(self) -> None:
        """Note what models hold now, for when they come back."""
        for device in self._devices.all:
            for digest, memory in device.model_memory.items():
                held = memory.host_weights + memory.activations + memory.sessions
                self._held[device.name, digest] = held

    def _fits(self, digest: str, model: ModelVersion) -> bool:
        """Whether all that is loaded or being loaded fits on every device with a limit."""
        self._remember()
        rows = {row.artefact: row for row, _ in self._present()} | {digest: model}
        for device in self._devices.all:
            limit = device.link.options.memory_bytes
            if not limit:
                continue
            most = limit - LIBRARIES_BYTES - limit // PART
            digests = rows.keys() | self._loading.keys()
            held = sum(
                self._held.get((device.name, key), _estimate(rows.get(key))) for key in digests
            )
            if held > most:
                return False
        return True


def _estimate(row: ModelVersion | None) -> int:
    return ESTIMATE_BYTES if row is None else ESTIMATE_FACTOR * row.size_bytes + ESTIMATE_BYTES


def _text(row: ModelVersion) -> str:
    return f"{row.name}/{row.version}"


def _read_order(file: Path) -> dict[str, int]:
    """Places in the order of use; none if there is no such file, or it is damaged."""
    with suppress(OSError):
        file.with_suffix(_BEING_WRITTEN).unlink(missing_ok=True)  # by a server that was killed
    try:
        names = json.loads(read_file(file, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(names, list):
        return {}
    return {name: place for place, name in enumerate(names) if isinstance(name, str)}


def _write_order(file: Path, order: list[str]) -> None:
    new = file.with_suffix(_BEING_WRITTEN)
    try:
        new.unlink(missing_ok=True)  # whatever it is, a pipe or a link
        new.write_text(json.dumps(order))
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
