"""What stops to serve when a new version begins to, as one change: no crash can lie between."""

import pytest

from braid.server.fleet.tables import claims
from braid.server.store.records import ModelStatus, Registration
from braid.server.store.serving_config import ServingConfig, VersionPolicy
from braid.server.store.store import Store
from tests.server.store.databases import reopened
from tests.server.store.registering import register


def versions(store: Store, number: int) -> list[Registration]:
    """Versions of one name that are being imported."""
    return [register(store, content=b"version %d" % each) for each in range(number)]


NEWEST = ServingConfig(versions=VersionPolicy(latest=1))


def serving(store: Store) -> set[int]:
    """Versions that serve, also after a crash at this moment."""
    states = {each.version: each.state for each in store.models("lenet")}
    return {number for number, state in states.items() if state is ModelStatus.SERVING}


def test_the_former_version_is_unloaded_with_the_first_time_of_the_next(store: Store) -> None:
    one, two = versions(store, 2)
    store.put_serving_config("lenet", NEWEST)
    store.serves(one.model)
    assert serving(store) == {1}

    store.serves(two.model)

    assert serving(store) == {2}
    again = reopened(store)
    assert serving(again) == {2}
    assert again.find_model("lenet", 1).state is ModelStatus.UNLOADED
    again.close()


@pytest.mark.parametrize(
    "config",
    [
        ServingConfig(versions=VersionPolicy(latest=2)),
        ServingConfig(versions=VersionPolicy(specific=(1, 2))),
        ServingConfig(versions=VersionPolicy(latest=1), labels={"stable": 1}),
        ServingConfig(),
    ],
)
def test_what_policy_or_label_want_goes_on(store: Store, config: ServingConfig) -> None:
    one, two = versions(store, 2)
    store.put_serving_config("lenet", config)
    store.serves(one.model)

    store.serves(two.model)

    assert serving(store) == {1, 2}


def test_a_version_that_comes_late_unloads_nothing(store: Store) -> None:
    one, two = versions(store, 2)
    store.put_serving_config("lenet", NEWEST)
    store.serves(two.model)

    store.serves(one.model)

    assert 2 in serving(store)


def test_a_version_that_is_loaded_again_unloads_nothing(store: Store) -> None:
    """A change of the policy may be on its way, which wants both."""
    one, two, three = versions(store, 3)
    store.put_serving_config("lenet", NEWEST)
    for each in (one, two, three):
        store.serves(each.model)
    for number in (1, 2):
        store.set_model_state("lenet", number, ModelStatus.SERVING)

    store.set_model_state("lenet", 3, ModelStatus.UNLOADED)
    store.serves(store.find_model("lenet", 3))

    assert serving(store) == {1, 2, 3}


def test_jobs_of_what_is_unloaded_are_asked_to_end(store: Store) -> None:
    one, two = versions(store, 2)
    store.put_serving_config("lenet", NEWEST)
    store.serves(one.model)

    store.serves(two.model)

    stored = store.database.read(claims.unfinished)
    asked = {each.job.id for each in stored if each.cancel_requested}
    assert asked == {one.job.id}
