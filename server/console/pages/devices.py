"""The page about devices: what they are, what they measured, settings; and the other servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from braid.core.errors import BraidError
from braid.server.console.facts import Facts
from braid.server.console.rendering import Page
from braid.server.devices.device import Device
from braid.server.store.records import ShownNode


@dataclass(frozen=True, slots=True)
class ShownDevice:
    """One device: counts that change, and what its measurements depend on."""

    name: str
    state: str
    counts: Mapping[str, str]
    known: Mapping[str, str]


async def devices(facts: Facts) -> Page:
    nodes, problem = await _nodes(facts)
    shown = {
        "nodes": nodes,
        "problem": problem,
        "is_shared": facts.nodes.is_shared,
        "devices": [_device(facts, device) for device in facts.devices.all],
        "settings": facts.settings,
    }
    return Page("devices.html", "Devices", shown, "Devices", is_live=True)


async def _nodes(facts: Facts) -> tuple[list[ShownNode], str]:
    """Return the servers that share the database, or why they are not known."""
    if not facts.nodes.is_shared:
        return [], ""
    try:
        return await facts.nodes.nodes(), ""
    except BraidError as error:
        return [], str(error)


def _device(facts: Facts, device: Device) -> ShownDevice:
    def counted(name: str) -> float:
        return facts.sample(f"braid_stage_{name}_total", device=device.name) or 0.0

    return ShownDevice(
        device.name,
        "ready" if device.is_up else "restarting",
        {
            "restarts": f"{facts.metrics.devices.restarts(device.name):.0f}",
            "stages measured": f"{counted('measurements'):.0f}",
            "found in the store": f"{counted('measurements_reused'):.0f}",
            "cores": str(device.state),
            "spent measuring": f"{counted('measurement_seconds'):.1f} s",
        },
        {**dict(_parts(device.device_key)), **device.software} if device.is_up else {},
    )


def _parts(device_key: str) -> Iterator[tuple[str, str]]:
    """Yield a device key, ``cpu:AMD EPYC:cores=2:threads=2``, as names and values."""
    for number, part in enumerate(device_key.split(":")):
        name, equals, value = part.partition("=")
        yield (name, value) if equals else (("kind", "name")[min(number, 1)], part)
