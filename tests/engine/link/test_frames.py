"""A blocking channel whose peer is gone: the stream has ended, whatever was under way."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import AskStatus


@pytest.fixture
def ends() -> Iterator[tuple[BlockingChannel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield BlockingChannel(ours), theirs


def test_a_peer_that_dies_with_messages_unread_ends_the_stream(
    ends: tuple[BlockingChannel, socket.socket],
) -> None:
    channel, peer = ends
    channel.send(AskStatus())
    peer.close()

    assert channel.receive() is None


def test_nothing_is_sent_to_a_peer_that_is_gone(
    ends: tuple[BlockingChannel, socket.socket],
) -> None:
    channel, peer = ends
    peer.close()

    channel.send(AskStatus())

    assert channel.receive() is None
