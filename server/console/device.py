"""The page about the device: what it is, what it measured, how it is set up."""

from __future__ import annotations

from collections.abc import Iterator

from server.console.facts import Facts
from server.console.html import h, table
from server.console.layout import Page, live, pairs, state, tiles


async def device(facts: Facts) -> Page:
    """Facts that measurements depend on, and what was measured."""
    worker = facts.device
    known = {**dict(_parts(worker.device_key)), **worker.software} if worker.is_up else {}
    count = facts.metrics.registry.get_sample_value
    labels = {"device": worker.name}

    def counted(name: str) -> float:
        return count(name, labels) or 0.0

    seconds = counted("braid_stage_measurement_seconds_total")
    body = h(
        "div",
        live(
            "device",
            tiles(
                ("worker", state("ready" if worker.is_up else "restarting")),
                ("restarts", f"{counted('braid_worker_restarts_total'):.0f}"),
                ("stages measured", f"{counted('braid_stage_measurements_total'):.0f}"),
                ("found in the store", f"{counted('braid_stage_measurements_reused_total'):.0f}"),
                ("spent measuring", f"{seconds:.1f} s"),
            ),
        ),
        h("h2", worker.name),
        pairs(*known.items()),
        h("p", "Schedules and measurements hold for exactly this device.", class_="note"),
        h("h2", "Settings"),
        table(("setting", "value"), facts.settings.items(), caption="Settings"),
    )
    return Page("Device", body, "Device", is_live=True)


def _parts(device_key: str) -> Iterator[tuple[str, str]]:
    """A device key as names and values: ``cpu:AMD EPYC:cores=2:threads=2``."""
    for number, part in enumerate(device_key.split(":")):
        name, equals, value = part.partition("=")
        yield (name, value) if equals else (("kind", "name")[min(number, 1)], part)
