"""Servers under attack for the tests of this folder; each test leaves them sound."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.target import TRANSPORTS, Target

ALL = [TRANSPORTS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in TRANSPORTS[1:])]


@pytest.fixture(scope="session", params=ALL)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """A server, checked once more at its end."""
    made = Target.start(tmp_path_factory.mktemp("attack"), request.param)
    try:
        yield made
        made.check()
    finally:
        made.end()
