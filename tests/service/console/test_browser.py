"""A real Chromium walks the console: every page, live progress, a timeline, keys, both themes.

BRAID_SCREENSHOTS=FOLDER keeps pictures of the pages; docs/images holds those of a real model.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.small import small_cnn
from tests.service.console.browser import Browser, address
from tests.service.server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_complaints")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without tokens: its console is open, and only shows."""
    with ServerProcess(tmp_path_factory.mktemp("browser") / "store").start() as made:
        yield made


def keep(browser: Browser, name: str, *, dark: bool = False) -> None:
    if folder := os.environ.get("BRAID_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"{name}.png", dark=dark)


def test_a_registration_is_watched_live_and_its_schedule_looked_at(
    server: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    browser.open(address(server))
    assert "no models; register one" in browser.text
    browser.open(address(server, "jobs"))

    wide = small_cnn(tmp_path / "wide.onnx", branches=7)
    with server.client() as client:
        job = client.register("wide", wide, batch_sizes=[1, 2, 4])
        browser.until("document.querySelector('main').innerText.includes('wide v1')")
        browser.follow(job.id)
        browser.run(
            "window.seen = new Set(); new MutationObserver(() => window.seen.add("
            "document.querySelector('progress').value)).observe(document.getElementById("
            "'live-job'), {subtree: true, attributes: true})"
        )
        phases = "[...document.querySelectorAll('.phases li')]"
        browser.until(f"{phases}.every(each => each.className === 'done')")
    seen = browser.run("[...window.seen]")
    assert len(seen) >= 2, "the bar moved without the page being loaded again"
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert browser.run(f"{phases}.map(each => each.textContent)") == [
        *("queued", "importing", "measuring", "searching", "comparing", "ready")
    ]
    done = "[...document.querySelectorAll('.sizes .done')].map(each => each.textContent)"
    assert browser.run(done) == ["1", "2", "4"]
    keep(browser, "job")

    browser.follow("wide")
    browser.until("document.querySelector('main').innerText.includes('Candidates compared')")
    keep(browser, "model")
    browser.follow("4")
    bars = browser.run("document.querySelectorAll('svg.braid g.bar').length")
    units = browser.run("new Set([...document.querySelectorAll('g.bar')].map(e => e.dataset.unit))"
                        ".size")  # fmt: skip
    assert bars in (units, 2 * units), "a sequential plan is drawn once"
    assert units > 0
    assert "FP32[4, 3, 16, 16]" in browser.run("document.querySelector('g.bar title').textContent")
    keep(browser, "schedule")
    browser.follow("batch 1")
    assert "batch 4, cpu against wide, batch 1" in browser.run("document.body.textContent")
    keep(browser, "compare")


def test_it_can_be_used_by_keyboard_alone(server: ServerProcess, browser: Browser) -> None:
    browser.open(address(server))
    focused = "document.activeElement.textContent.trim()"
    order = []
    for _ in range(8):
        browser.press("Tab")
        order.append(browser.run(focused))
        assert browser.run(
            "document.activeElement.matches(':focus-visible') "
            "&& getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        ), f"the focus on {order[-1]!r} cannot be seen"
    assert order[:6] == ["Skip to content", "braid", "Models", "Jobs", "Devices", "Sign in"]
    while browser.run(focused) != "wide":
        browser.press("Tab")
        order.append(browser.run(focused))
        assert len(order) < 20, order
    browser.press("Enter")
    browser.until("document.title.startsWith('wide version 1')")


def test_it_behaves_with_two_hundred_models(
    server: ServerProcess, browser: Browser, tmp_path: Path
) -> None:
    model = small_cnn(tmp_path / "many.onnx", branches=2)
    with server.client() as client:
        client.register("many-000", model, wait=True)
        jobs = [client.register(f"many-{number:03}", model) for number in range(1, 200)]
        for job in jobs:
            for _ in client.watch_job(job.id):
                pass
    browser.open(address(server))
    rows = "document.querySelectorAll('tbody tr').length"
    assert browser.run(rows) == 201
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    took = browser.run("performance.getEntriesByType('navigation')[0].duration")
    assert took < 2000, f"the page took {took} ms"

    browser.press("/", "/")
    browser.call("Input.insertText", text="many-19")
    browser.press("Enter")
    browser.until(f"{rows} === 10")
    keep(browser, "many")


def test_a_server_that_is_gone_makes_the_page_stale_and_one_that_is_back_fresh(
    tmp_path: Path, browser: Browser
) -> None:
    other = ServerProcess(tmp_path / "store").start()
    browser.open(address(other))
    other.kill_everything()

    browser.until("document.querySelector('.live').classList.contains('stale')")
    browser.complaints.clear()  # the browser itself says that the server is gone
