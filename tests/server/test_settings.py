from pathlib import Path

import pytest

from braid.core.errors import StartupError
from braid.server.limits import batch_policy, memory_limits, store_database
from braid.server.settings import GIB, MIB, load_settings, shown_settings


@pytest.fixture(autouse=True)
def _no_braid_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_defaults_bind_to_loopback_and_keep_the_store_in_the_users_data_folder(
    tmp_path: Path,
) -> None:
    settings = load_settings()

    assert (settings.host, settings.grpc_port, settings.http_port) == ("127.0.0.1", 8001, 8002)
    assert settings.store == tmp_path / "braid"
    assert settings.max_upload_bytes == 2 * GIB


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_GRPC_PORT", "9001")
    monkeypatch.setenv("BRAID_HTTP_PORT", "9002")

    settings = load_settings({"grpc_port": 7001, "http_port": None})

    assert (settings.grpc_port, settings.http_port) == (7001, 9002)


def test_sizes_lists_levels_and_paths_are_read_as_people_write_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRAID_MAX_UPLOAD_BYTES", "300MiB")
    monkeypatch.setenv("BRAID_DEVICES", " cpu ,")
    monkeypatch.setenv("BRAID_HTTP_HOSTS", "braid.example.com, braid")
    monkeypatch.setenv("BRAID_LOG_LEVEL", "debug")
    monkeypatch.setenv("BRAID_STORE", "~/models")

    settings = load_settings()

    assert settings.max_upload_bytes == 300 * MIB
    assert settings.devices == ("cpu",)
    assert settings.http_hosts == ("braid.example.com", "braid")
    assert settings.log_level == "DEBUG"
    assert settings.store == Path.home() / "models"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GRPC_PORT", "abc", "valid integer"),
        ("GRPC_PORT", "70000", "less than or equal to 65535"),
        ("HOST", "", "at least 1 character"),
        ("DEVICES", "", "name at least one device"),
        ("DEVICES", "cpu,cpu", "twice"),
        ("DEVICES", "tpu", "unknown device 'tpu'"),
        ("DEVICES", "cuda", "known: cpu, cpu:FIRST-LAST (cores), cuda:INDEX"),
        ("DEVICES", "cuda:1,cpu,cuda:01", "cuda:1 is named twice"),
        ("DEVICES", "cpu:0-3,cpu:2", "share cores"),
        ("DEVICES", "cpu,cpu:2", "share cores"),
        ("DEVICES", "cpu:3-1", "names no core"),
        ("MAX_UPLOAD_BYTES", "2 elephants", "byte"),
        ("DRAIN_SECONDS", "-1", "greater than or equal to 0"),
        ("SHUTDOWN_DELAY_SECONDS", "-1", "greater than or equal to 0"),
        ("DRAIN_SECONDS", "inf", "finite"),
        ("TOLERANCE", "nan", "finite"),
        ("LOG_FORMAT", "xml", "'json' or 'text'"),
        ("THREADS", "two\nlines", "valid integer"),
        ("HTTP_HOSTS", "http://braid:8002", "without scheme and port"),
        ("CORS_ORIGINS", "https://a.example/", "not SCHEME://HOST[:PORT]"),
        ("CORS_ORIGINS", "a.example", "not SCHEME://HOST[:PORT]"),
        ("STORE", "/srv/\udcff", "give a path in UTF-8"),
        ("DATABASE", "mysql://db/braid", "give sqlite:///PATH or postgresql+psycopg://"),
        ("DATABASE", "postgresql://db", "give sqlite:///PATH or postgresql+psycopg://"),
        ("DATABASE", "postgresql://db:x/braid", "is no URL; write / in a password as %2F"),
        ("DATABASE", "braid.db", "give sqlite:///PATH or postgresql+psycopg://"),
        ("FILES", "ftp://host/path", "give a folder, s3://BUCKET/PREFIX"),
        ("FILES", "s3://", "give a folder, s3://BUCKET/PREFIX"),
        ("NODE_NAME", "a b", "letters, digits"),
        ("NODE_ADDRESS", "here", "give HOST:PORT"),
        ("LEASE_SECONDS", "0.5", "greater than or equal to 1"),
    ],
)
def test_a_bad_value_stops_the_start_with_one_line_that_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"BRAID_{name}", value)

    with pytest.raises(StartupError) as caught:
        load_settings()

    message = str(caught.value)
    assert message.startswith(f"bad settings: BRAID_{name}={value!r} ")
    assert expected in message
    assert "\n" not in message


def test_all_bad_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_THREADS", "x")

    with pytest.raises(StartupError, match=r"--grpc-port='-1'.*; BRAID_THREADS='x'"):
        load_settings({"grpc_port": -1})


def test_two_ports_are_two() -> None:
    with pytest.raises(StartupError, match="BRAID_GRPC_PORT and BRAID_HTTP_PORT are both 8001"):
        load_settings({"http_port": 8001})
    assert load_settings({"grpc_port": 0, "http_port": 0}).http_port == 0


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(StartupError, match="--prot='1'"):
        load_settings({"prot": 1})


def test_of_secrets_only_shows_whether_they_are_set(tmp_path: Path) -> None:
    shown = shown_settings(load_settings({"admin_token": "sesame", "store": tmp_path}))

    assert shown["BRAID_ADMIN_TOKEN"] == "set"
    assert "BRAID_INFER_TOKEN" not in shown, "not set"
    assert shown["BRAID_STORE"] == str(tmp_path)
    assert shown["BRAID_MAX_UPLOAD_BYTES"] == "2.0GiB"
    assert "sesame" not in str(shown)


POSTGRESQL = "postgresql+psycopg://braid:sesame@db:5432/braid"


def test_several_servers_share_database_and_files_or_neither() -> None:
    with pytest.raises(StartupError, match="so BRAID_FILES must be, too: give s3://BUCKET/PREFIX"):
        load_settings({"database": POSTGRESQL})
    with pytest.raises(StartupError, match="BRAID_FILES needs a PostgreSQL database"):
        load_settings({"files": "s3://bucket/prefix"})
    with pytest.raises(StartupError, match="BRAID_FILES needs a PostgreSQL database"):
        load_settings({"files": "s3://bucket/prefix", "database": "sqlite:////srv/braid.db"})

    fleet = load_settings({"database": POSTGRESQL, "files": "s3://bucket/prefix"})
    assert fleet.is_fleet
    assert not load_settings().is_fleet
    assert not load_settings({"database": "sqlite:////srv/braid.db"}).is_fleet


def test_each_process_has_a_node_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().node_name != load_settings().node_name
    monkeypatch.setenv("BRAID_NODE_NAME", "a-1")
    assert load_settings().node_name == "a-1"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (POSTGRESQL, "postgresql+psycopg://braid:***@db:5432/braid"),
        ("postgresql://db/braid?password=sesame&x=1", "postgresql://db/braid?password=***&x=1"),
        ("postgresql://braid@db/braid", "postgresql://braid@db/braid"),
    ],
)
def test_a_password_of_the_database_never_shows(url: str, shown: str) -> None:
    settings = load_settings({"database": url, "files": "s3://bucket"})

    assert shown_settings(settings)["BRAID_DATABASE"] == shown
    assert "sesame" not in f"{settings!r} {settings} {shown_settings(settings)}"


@pytest.mark.parametrize("url", ["http://u:sesame@db/x", "postgresql://u:sesame/x@db:y/z"])
def test_a_password_in_a_url_that_is_refused_does_not_show_either(url: str) -> None:
    with pytest.raises(StartupError) as caught:
        load_settings({"database": url})

    assert "sesame" not in str(caught.value)


def test_a_password_of_the_database_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/word\n")
    given = {"database": "postgresql://braid@db/braid", "files": "/srv", "store": tmp_path}

    url = store_database(load_settings(given | {"database_password_file": file}))

    assert url is not None
    assert (url.drivername, url.password) == ("postgresql+psycopg", "p@ss/word")
    assert "word" not in str(url)
    with pytest.raises(StartupError, match=r"BRAID_DATABASE_PASSWORD_FILE=.* cannot be read"):
        store_database(load_settings(given | {"database_password_file": tmp_path / "none"}))


LIMITS = ("calls", "shared", "worker", "bench", "import", "import_together")
"""Processes, and what they share: all that may be in memory at the same time."""


@pytest.mark.parametrize(("budget", "devices"), [("4GiB", 1), ("10GiB", 1), ("64GiB", 2)])
def test_the_limits_of_all_processes_add_up_to_no_more_than_the_budget(
    budget: str, devices: int
) -> None:
    names = ("cpu:0", "cpu:1")[:devices]
    settings = load_settings({"memory_bytes": budget, "devices": names})
    parts = {
        name: getattr(settings, f"{name}{'_bytes' if 'together' in name else '_memory_bytes'}")
        for name in LIMITS
    }
    counts = {name: devices if name in ("shared", "worker", "bench") else 1 for name in LIMITS}

    assert sum(counts[name] * size for name, size in parts.items()) <= settings.memory_bytes
    assert parts["worker"] > settings.memory_bytes // devices // 5
    assert settings.planner_memory_bytes == settings.bench_memory_bytes // 2


def test_the_usual_budget_is_four_fifths_of_what_the_container_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("braid.server.memory_budget.usable_memory_bytes", lambda: 10 * GIB)

    assert load_settings().memory_bytes == 8 * GIB


def test_a_limit_that_is_set_stays_and_changes_no_other() -> None:
    usual = load_settings({"memory_bytes": "8GiB"})
    settings = load_settings({"memory_bytes": "8GiB", "worker_memory_bytes": "1GiB"})

    assert settings.worker_memory_bytes == GIB
    assert settings.import_memory_bytes == usual.import_memory_bytes


def test_limits_follow_from_the_settings_beside_them() -> None:
    settings = load_settings(
        {"connection_memory_bytes": "8MiB", "import_wall_seconds": 90, "max_queue_requests": 2000}
    )

    assert memory_limits(settings).stream_bytes == 2 * MIB
    assert settings.import_limits.cpu_seconds == 60
    assert batch_policy(settings).max_rows == 8000
    assert batch_policy(load_settings({"max_queue_requests": 1})).max_rows == 4096


@pytest.mark.parametrize(("given", "named"), [("512MiB", "512.0MiB"), ("", "819.2MiB")])
def test_a_budget_too_small_for_any_model_is_refused_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, given: str, named: str
) -> None:
    monkeypatch.setattr("braid.server.memory_budget.usable_memory_bytes", lambda: GIB)
    overrides = {"memory_bytes": given} if given else {}

    with pytest.raises(StartupError, match=rf"BRAID_MEMORY_BYTES is {named} .*GiB are needed"):
        load_settings(overrides)
