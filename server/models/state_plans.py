"""Plans follow the state of their device: after a change those of the new state serve.

    StateWatch ──changed──> follow ──for each schedule──> stored for this state? ──> swap
                                                           no ──> made in idle time (on_lacking)

Swaps are those of a better plan: batches formed from then on run the new one, and none waits. What
is prepared for the state before is kept, as far as memory goes (server/inference/spare_plans.py).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from braid.core.errors import BraidError
from braid.core.keyed_locks import KeyedLocks
from braid.core.schedule import ScheduleKey
from braid.server.devices.device import Device
from braid.server.inference.replica import ModelReplica, ScheduleMark
from braid.server.jobs.registration import promote
from braid.server.jobs.services import JobServices
from braid.server.models.serving_models import ServingModels

log = logging.getLogger("braid.jobs")


class StatePlans:
    """Lets the plans of present states serve. Belongs to the event loop."""

    def __init__(self, services: JobServices, models: ServingModels) -> None:
        """Follow nothing yet."""
        self._services = services
        self._models = models
        self._turns = KeyedLocks()

    async def follow(self, device: Device) -> None:
        """Let the plans of a device's present state serve on it, where there are some.

        What fails leaves the plan of before in force. A change meanwhile is followed by the next
        call, which waits for this one.
        """
        async with self._turns.of(device.name):
            for replica in self._models.all_replicas():
                if replica.device is device:
                    for key in [*replica.chosen]:
                        await self._follow(replica, key)

    async def _follow(self, replica: ModelReplica, key: ScheduleKey) -> None:
        services, device = self._services, replica.device
        state, model = device.state.name, replica.model
        facts = {"model": replica.name, "version": replica.version, "size": key.batch_size}
        try:
            schedule = await services.store.call(services.store.find_in_state, key, state)
            if schedule is None:
                return
            if not schedule.is_of(state) and key in replica.schedule_keys:
                services.on_lacking(model, device.name, replace(key, state=state))
            if replica.chosen.get(key) != ScheduleMark.of(schedule):
                await promote(model, device, schedule, services, services.retry())
        except BraidError as error:  # it is gone, or the device has no room for it
            log.warning("a plan stays", extra={**facts, "state": state, "reason": str(error)})
