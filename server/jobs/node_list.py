"""Servers as callers and people see them: all that share the database, or the one there is."""

import time
from collections.abc import Callable
from dataclasses import replace

from braid.core.allowance import CpuAllowance, cpu_allowance
from braid.server.settings import Settings
from braid.server.store.records import NodeRecord, ShownNode
from braid.server.store.store import Store
from braid_client.version import __version__


class NodeList:
    """The list of servers. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        device_keys: Callable[[], str],
        grpc_port: Callable[[], int],
        allowance: CpuAllowance | None = None,
    ) -> None:
        """Read nothing yet; each look calls ``device_keys`` and ``grpc_port`` again."""
        self.allowance = allowance or cpu_allowance()
        self._store = store
        self._settings = settings
        self._device_keys = device_keys
        self._grpc_port = grpc_port
        self._started_unix = time.time()

    @property
    def is_shared(self) -> bool:
        """True if there may be more servers than this one."""
        return self._settings.is_fleet

    @property
    def memory_budget_bytes(self) -> int:
        return self._settings.memory_bytes

    async def nodes(self) -> list[ShownNode]:
        """Return the servers by id. Unavailable: the database that they share does not answer."""
        if not self.is_shared:
            jobs = await self._store.call(self._store.unfinished_jobs)
            return [ShownNode(self._own_record(), 0.0, tuple(job.id for job in jobs), is_this=True)]
        return [
            replace(node, is_this=node.node.id == self._settings.node_name)
            for node in await self._store.call(self._store.listed_nodes)
        ]

    def _own_record(self) -> NodeRecord:
        settings = self._settings
        return NodeRecord(
            settings.node_name,
            settings.node_address or f"{settings.host}:{self._grpc_port()}",
            self._device_keys(),
            __version__,
            self._started_unix,
            time.time(),
        )
