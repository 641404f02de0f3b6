"""No message, random or damaged, is answered with the server's mistake or not at all."""

import pytest

from campaigns.noise import Outcomes, Sender
from tests.attack.target import Target

pytestmark = pytest.mark.ci

CALLS = 1200


async def test_no_message_is_the_servers_mistake(target: Target) -> None:
    outcomes = Outcomes()
    sender = Sender(target, outcomes)
    target.tracebacks()

    await sender.send(range(CALLS))
    await sender.close()

    assert outcomes.findings == []
    assert outcomes.messages > CALLS
    assert {path for path, _ in outcomes.counts} == {each.path for each in sender.methods}
    assert target.tracebacks() == []
    assert 0 < target.server.log.count("a message cannot be decoded") < outcomes.messages / 2
    target.check()
