import pytest
from pydantic import ByteSize

from braid.server.ray.environment import missing, needed, with_braid
from braid.server.settings import Settings


@pytest.fixture
def settings() -> Settings:
    return Settings(max_message_bytes=ByteSize(1 << 20))


def test_what_braid_starts_lacks_nothing(settings: Settings) -> None:
    assert missing(settings, with_braid(settings, {}, threads=4)) == ""


@pytest.mark.parametrize("name", [*needed(Settings()), "RAY_SERVE_HAPROXY_BINARY_PATH"])
def test_each_variable_is_named_when_it_is_missing(settings: Settings, name: str) -> None:
    environment = with_braid(settings, {}, threads=4)
    del environment[name]

    line = missing(settings, environment)

    assert name in line
    assert "\n" not in line
    assert not any(other in line for other in environment)


def test_a_wrong_value_is_missing_too(settings: Settings) -> None:
    environment = with_braid(settings, {}, threads=4) | {"RAY_SERVE_ENABLE_HA_PROXY": "0"}

    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in missing(settings, environment)


def test_an_operators_number_of_threads_stays_but_not_a_wrong_window(settings: Settings) -> None:
    window = "RAY_SERVE_HAPROXY_H2_FE_INITIAL_WINDOW_SIZE"
    own = {"RAY_SERVE_HAPROXY_NBTHREAD": "1", window: "65536", "HOME": "/root"}

    made = with_braid(settings, own, threads=4)

    assert made["RAY_SERVE_HAPROXY_NBTHREAD"] == "1"
    assert made["HOME"] == "/root"
    assert made[window] == str(4 << 20)
