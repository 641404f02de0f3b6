"""No message, random or damaged, is answered with the server's mistake or not at all."""

from __future__ import annotations

import random

import pytest

from tests.attack.noise import Sender, messages, methods_of
from tests.attack.target import Target

pytestmark = pytest.mark.ci

CALLS = 1200


async def test_no_message_is_the_servers_mistake(target: Target) -> None:
    methods = methods_of(target.addresses["grpcio"])
    sender = Sender(target.addresses, methods)
    target.tracebacks()

    await sender.send(range(CALLS))
    await sender.close()

    assert sender.outcomes.findings == []
    assert sender.outcomes.messages > CALLS
    assert {path for _, path, _ in sender.outcomes.counts} == {each.path for each in methods}
    assert target.tracebacks() == []
    target.check()


def test_reflection_names_the_same_methods_on_both_ports(target: Target) -> None:
    found = {name: methods_of(address) for name, address in target.addresses.items()}

    paths = {name: [method.path for method in each] for name, each in found.items()}
    assert paths["own"] == paths["grpcio"]
    assert len(paths["own"]) > 30


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_makes_the_same_messages(target: Target, seed: int) -> None:
    for method in methods_of(target.addresses["grpcio"]):
        first, again = (list(messages(method, random.Random(seed))) for _ in range(2))
        assert first == again
