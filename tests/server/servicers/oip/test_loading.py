import json
from typing import Any

import pytest

from braid.core.errors import InvalidRequest
from braid.server.repository.configuration import Configuration
from braid.server.servicers.oip.repository import MAX_CONFIG_CHARS, load_request
from braid.server.servicers.oip.wire import messages
from braid.server.store.serving_config import ServingConfig, VersionPolicy

DEVICES = ("cpu", "cuda:0")


def loaded(given: dict[str, Any]) -> Configuration:
    _, config = load_request("m", given, DEVICES)
    assert config is not None
    return config


def load(config: dict[str, Any]) -> Configuration:
    text = messages.ModelRepositoryParameter(string_param=json.dumps(config))
    return loaded({"config": text})


@pytest.mark.parametrize(
    ("policy", "meant"),
    [
        ({"latest": {"num_versions": 2}}, VersionPolicy(latest=2)),
        ({"latest": {}}, VersionPolicy(latest=1)),
        ({"all": {}}, VersionPolicy()),
        ({"specific": {"versions": [3, 1]}}, VersionPolicy(specific=(1, 3))),
    ],
)
def test_a_version_policy_is_taken_over(policy: dict[str, Any], meant: VersionPolicy) -> None:
    assert load({"version_policy": policy}).serving(ServingConfig()).versions == meant


def test_without_a_policy_versions_serve_as_before() -> None:
    before = ServingConfig(VersionPolicy(latest=3))
    assert load({"max_batch_size": 4}).serving(before) == before


def test_a_configuration_longer_than_any_is_refused_unread() -> None:
    with pytest.raises(InvalidRequest, match=f"characters; it may have {MAX_CONFIG_CHARS}"):
        load({"parameters": {"a": {"string_value": "x" * MAX_CONFIG_CHARS}}})


def test_labels_come_with_the_configuration_that_names_them() -> None:
    config = {"output": [{"name": "y", "label_filename": "l.txt"}]}
    given = {
        "file:l.txt": messages.ModelRepositoryParameter(bytes_param="cat\nchâteau".encode()),
        "config": messages.ModelRepositoryParameter(string_param=json.dumps(config)),
    }
    interface = loaded(given).serving(ServingConfig()).interface
    assert interface.labels("y") == ("cat", "château")
    with pytest.raises(InvalidRequest, match=r"send parameter 'file:l\.txt', in bytes"):
        load(config)
    del given["config"]
    with pytest.raises(InvalidRequest, match=r"'file:l\.txt' is not known"):
        load_request("m", given, DEVICES)


@pytest.mark.parametrize(
    ("groups", "is_passed_over"),
    [
        ([{"count": 1}], False),
        ([{"kind": "KIND_CPU"}], False),
        ([{"count": 1, "kind": "KIND_GPU", "gpus": [0]}], False),
        ([{"name": "one", "kind": "KIND_AUTO"}], False),
        ([{"count": 2}], True),
        ([{"kind": "KIND_CPU"}, {"kind": "KIND_GPU"}], True),
        ([{"kind": "KIND_GPU", "gpus": [1]}], True),
        ([{"host_policy": "numa0"}], True),
    ],
)
def test_instances_beside_the_one_of_each_device_are_passed_over(
    groups: list[dict[str, Any]], is_passed_over: bool
) -> None:
    config = load({"instance_group": groups})

    assert ("instance_group" in config.warning) is is_passed_over
