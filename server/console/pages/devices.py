"""The page about devices: what they are, what they measured, settings; and the other servers."""

from collections.abc import Iterator, Mapping

from braid.core.errors import BraidError
from braid.server.console.facts import Facts
from braid.server.console.rendering import Page
from braid.server.devices.device import Device
from braid.server.store.records import ShownNode


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


def _device(facts: Facts, device: Device) -> tuple[str, str, Mapping[str, str], Mapping[str, str]]:
    """Return name and state, counts that change, and what measurements depend on."""

    def counted(name: str) -> float:
        return facts.counted(f"braid_{name}_total", device=device.name)

    return (
        device.name,
        "ready" if device.is_up else "restarting",
        {
            "restarts": f"{counted('worker_restarts'):.0f}",
            "stages measured": f"{counted('stage_measurements'):.0f}",
            "found in the store": f"{counted('stage_measurements_reused'):.0f}",
            "cores": str(device.state),
            "spent measuring": f"{counted('stage_measurement_seconds'):.1f} s",
        },
        {**dict(_parts(device.device_key)), **device.software} if device.is_up else {},
    )


def _parts(device_key: str) -> Iterator[tuple[str, str]]:
    """Yield a device key, ``cpu:AMD EPYC:cores=2:threads=2``, as names and values."""
    for number, part in enumerate(device_key.split(":")):
        name, equals, value = part.partition("=")
        yield (name, value) if equals else (("kind", "name")[min(number, 1)], part)
