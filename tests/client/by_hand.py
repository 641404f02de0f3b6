"""Fixture of tests of hand-made messages: small messages, too, are read and written by hand."""

from collections.abc import Iterator

import pytest

from braid_client import wire_fields


@pytest.fixture(autouse=True, scope="module", params=[0, wire_fields.SMALL_BYTES])
def small_bytes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways: by hand, however small a message is, and by protobuf."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_fields, "SMALL_BYTES", request.param)
        yield
