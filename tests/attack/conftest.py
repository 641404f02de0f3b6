"""Servers under attack for the tests of this folder; each test leaves them sound."""

from collections.abc import Iterator

import pytest

from tests.attack.target import Target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server, checked once more at its end."""
    made = Target.start(tmp_path_factory.mktemp("attack"))
    try:
        yield made
        made.check()
    finally:
        made.end()
