"""The page about the devices: what they are, what they measured, how the server is set up."""

from __future__ import annotations

from collections.abc import Iterator

from braid.server.console.facts import Facts
from braid.server.console.pages.html import Html, h, table
from braid.server.console.pages.layout import Page, live, pairs, state, tiles
from braid.server.devices.device import Device


async def devices(facts: Facts) -> Page:
    """Return the page of all devices: facts that measurements depend on, and counts."""
    body = h(
        "div",
        [_device(facts, each, number) for number, each in enumerate(facts.devices.all)],
        h("p", "Schedules and measurements hold for exactly these devices.", class_="note"),
        h("h2", "Settings"),
        table(("setting", "value"), facts.settings.items(), caption="Settings"),
    )
    return Page("Devices", body, "Devices", is_live=True)


def _device(facts: Facts, device: Device, number: int) -> Html:
    known = {**dict(_parts(device.device_key)), **device.software} if device.is_up else {}
    count = facts.metrics.registry.get_sample_value
    restarts = facts.metrics.devices.restarts(device.name)

    def counted(name: str) -> float:
        return count(name, {"device": device.name}) or 0.0

    seconds = counted("braid_stage_measurement_seconds_total")
    return h(
        "section",
        h("h2", device.name),
        live(
            f"device-{number}",
            tiles(
                ("worker", state("ready" if device.is_up else "restarting")),
                ("restarts", f"{restarts:.0f}"),
                ("stages measured", f"{counted('braid_stage_measurements_total'):.0f}"),
                ("found in the store", f"{counted('braid_stage_measurements_reused_total'):.0f}"),
                ("spent measuring", f"{seconds:.1f} s"),
            ),
        ),
        pairs(*known.items()),
    )


def _parts(device_key: str) -> Iterator[tuple[str, str]]:
    """Yield a device key, ``cpu:AMD EPYC:cores=2:threads=2``, as names and values."""
    for number, part in enumerate(device_key.split(":")):
        name, equals, value = part.partition("=")
        yield (name, value) if equals else (("kind", "name")[min(number, 1)], part)
