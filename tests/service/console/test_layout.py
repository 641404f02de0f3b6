"""Every page at the widths of a desk and of a phone, in both themes: it fits, and axe is content.

axe-core is an npm package, which `make setup` installs into the virtual environment.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braid_client import JobFailed, PlannerOptions
from tests.models.small import small_cnn, unknown_operator
from tests.service.console.browser import Browser, address
from tests.service.console.test_registering import run_model, set_fields
from tests.service.server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_complaints")]

AXE = Path(sys.prefix) / "node_modules/axe-core/axe.min.js"
NAME = "a-model-whose-name-has-" + "many-" * 15 + "words"
needs_axe = pytest.mark.skipif(
    not AXE.exists(), reason="needs axe-core: npm install --prefix .venv axe-core"
)
SHOWS = [(width, dark) for width in (1440, 390) for dark in (False, True)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Addresses of all kinds of pages, of a model with a failed version."""
    folder = tmp_path_factory.mktemp("layout")
    with ServerProcess(folder / "store").start() as server:
        with server.client() as client:
            greedy = PlannerOptions("greedy")
            model = small_cnn(folder / "cnn.onnx", branches=6)
            job = client.register(NAME, model, batch_sizes=[1, 4], planner=greedy, wait=True)
            with pytest.raises(JobFailed) as failed:
                client.register(NAME, unknown_operator(folder / "bad.onnx"), wait=True)
        paths = [
            "",
            "?q=none",
            "register",
            "jobs",
            f"jobs/{job.id}",
            f"jobs/{failed.value.job.id}",
            "devices",
        ]
        paths += [f"models/{NAME}", f"models/{NAME}?version=2", f"schedules/{NAME}/1/1"]
        paths += [f"schedules/{NAME}/1/1?zoom=8", f"compare/{NAME}/1/1/4", "sign-in"]
        yield [address(server, path) for path in paths]


@pytest.fixture(params=SHOWS, ids=[f"{w}-{'dark' if d else 'light'}" for w, d in SHOWS])
def width(browser: Browser, request: pytest.FixtureRequest) -> Iterator[int]:
    """Width of the window, in CSS pixels."""
    shown, dark = request.param
    browser.show(shown, dark=dark)
    yield shown
    browser.show_as_usual()


def test_no_page_scrolls_sideways(pages: list[str], browser: Browser, width: int) -> None:
    for page in pages:
        browser.open(page)
        assert browser.run("document.documentElement.scrollWidth") <= width, page


@needs_axe
def test_axe_finds_nothing_serious(pages: list[str], browser: Browser, width: int) -> None:
    for page in pages:
        browser.open(page)
        assert serious(browser) == [], page


@needs_axe
def test_axe_finds_nothing_serious_in_the_open_form_that_runs_a_model_nor_in_its_answer(
    pages: list[str], browser: Browser, width: int
) -> None:
    browser.open(next(page for page in pages if page.endswith(NAME)))
    browser.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    for source in ("image", "json", "numbers"):
        set_fields(browser, "#try-form", source=source)
        assert serious(browser) == [], source
        assert browser.run("document.documentElement.scrollWidth") <= width, source
    run_model(browser)
    assert serious(browser) == []
    set_fields(browser, "#try-form", source="json", json="no list")
    browser.run("document.querySelector('#try-form button').click()")
    browser.until("!document.querySelector('#try-problem').hidden")
    assert serious(browser) == []


def serious(browser: Browser) -> list[Any]:
    """What axe finds in the page as it is now."""
    browser.run(f"{AXE.read_text()};0")
    found = browser.run(FINDINGS)
    return [finding for finding in found if finding[1] in ("serious", "critical")]


FINDINGS = """axe.run({resultTypes: ["violations"]}).then(result => result.violations.map(
  each => [each.id, each.impact, ...each.nodes.map(node => node.html.slice(0, 200))]))"""


@needs_axe
def test_axe_is_asked_in_earnest(pages: list[str], browser: Browser) -> None:
    browser.open(pages[0])
    browser.run(f"{AXE.read_text()};document.querySelector('main').innerHTML += '<input>'")
    assert any(impact == "critical" for _, impact, *_ in browser.run(FINDINGS))


def test_jobs_and_models_are_read_on_a_phone_without_scrolling_a_table(
    pages: list[str], browser: Browser
) -> None:
    browser.show(390, dark=False)
    for page in pages:
        browser.open(page)
        regions = "[...document.querySelectorAll('.scroll:not(.picture)')]"
        wide = f"{regions}.filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
        assert browser.run(wide) == [], page
    browser.show_as_usual()


def test_on_a_phone_a_row_of_a_table_is_a_few_lines_and_no_card(
    pages: list[str], browser: Browser
) -> None:
    browser.show(390, dark=False)
    browser.open(next(page for page in pages if page.endswith(NAME)))
    heights = browser.run(
        "[...document.querySelectorAll('tbody tr')].filter(e => e.querySelector('td.number'))"
        ".map(e => e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight))"
    )
    browser.show_as_usual()
    assert len(heights) > 3
    assert sorted(heights)[len(heights) // 2] <= 6, heights


def test_a_failed_version_says_so_wherever_it_is_listed(pages: list[str], browser: Browser) -> None:
    browser.open(pages[0])
    assert re.search(r"2\s+✕ failed\s+the model cannot be imported", browser.text)
    browser.follow(NAME)
    assert "version 2 (failed)" in browser.text
    browser.follow("version 2 (failed)")
    assert "This version has failed." in browser.text
    assert "the sequential plan serves" not in browser.text


def test_what_a_reader_opened_stays_open_while_the_page_is_kept_fresh(
    pages: list[str], browser: Browser
) -> None:
    browser.open(pages[0])
    part = "document.getElementById('live-models')"
    link = f"{part}.querySelector('a')"
    browser.run(f"{link}.focus(); {link}.dataset.mine = 1; {part}.querySelector('td').append('!')")
    browser.until(f"!{part}.querySelector('td').textContent.includes('!')")
    assert browser.run(f"document.activeElement === {link} && !{link}.dataset.mine")
