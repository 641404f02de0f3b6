"""One Chromium for the tests of a file, whose own console stays empty."""

from collections.abc import Iterator

import pytest

from tests.service.console.browser import Browser, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def no_complaints(browser: Browser) -> Iterator[None]:
    """Whatever a test does, the browser's console stays empty."""
    browser.complaints.clear()
    yield
    browser.run("1")  # events that are still under way
    assert browser.complaints == []
