"""Settings of the server: environment variables ``BRAID_*``, overridden by the command line.

    BRAID_GRPC_PORT=9001 braid serve --store /srv/braid

Read once, at start-up, then never changed. A bad value stops the start with one line that names
the variable, the value and what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode, SettingsConfigDict

from braid.core.errors import StartupError
from braid.engine.importer.host.request import ImportLimits
from braid.server.device_names import parse_devices
from braid.server.fleet_settings import FleetSettings, is_host_and_port, without_password
from braid.server.memory_budget import (
    LEAST_IMPORT_BYTES,
    LEAST_WORKER_BYTES,
    memory_parts,
    usual_budget_bytes,
)

PREFIX = "BRAID_"
KIB, MIB, GIB = 2**10, 2**20, 2**30


_PARTS_OF_MEMORY = (
    *("calls_memory_bytes", "shared_memory_bytes"),
    *("worker_memory_bytes", "import_memory_bytes"),
)
"""Settings that are parts of ``memory_bytes`` where they are 0."""


def default_store() -> Path:
    """Return the usual folder of the store, independent of the working directory."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "braid"


def _split(given: Any) -> Any:
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    return given


def _each(pattern: str, what: str) -> AfterValidator:
    """Refuse a list with an entry that does not match, and so is not ``what``."""

    def check(entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            if not re.fullmatch(pattern, entry, re.ASCII):
                raise ValueError(f"not {what}: {entry[:100]!r}")
        return entries

    return AfterValidator(check)


Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Texts between commas."""

_HOST, _ORIGIN = r"\*|[\w.-]+", r"\*|[a-z][a-z0-9+.-]*://[^/*?#@\s]+"


class Settings(FleetSettings):
    """All settings of an operator. Sizes accept ``2GiB`` and plain bytes."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    # Commit that the server was built from, as the metric braid_build_info tells; images set it.
    commit: str = Field(default="", max_length=64)

    # What is kept, and where.
    store: Path = Field(default_factory=default_store)

    # Addresses. Loopback unless told otherwise; port 0 takes any free port.
    host: str = Field(default="127.0.0.1", min_length=1)
    grpc_port: int = Field(default=8001, ge=0, le=65535)
    http_port: int = Field(default=8002, ge=0, le=65535)

    # Names that the console is reached by, beside addresses and this host's. Commas; *: any.
    http_hosts: Annotated[Listed, _each(_HOST, "a name without scheme and port")] = ()

    # Origins whose pages in a browser may call REST, as https://app.example.com. Commas; *: any.
    cors_origins: Annotated[Listed, _each(_ORIGIN, "SCHEME://HOST[:PORT] in small letters")] = ()

    # Where admin calls are answered instead of the gRPC port: HOST:PORT, or unix:/PATH.
    admin_address: str = ""

    # TLS: PEM files. With an authority for clients, callers must show a certificate signed by it.
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    # Bearer tokens. Files hold one a line, as it is or hashed (`braid token`); the admin's open the
    # console, too. With any of them, calls, console and metrics without a token are refused. Those
    # for metrics, which scrapers send, go with others.
    admin_token_file: Path | None = None
    infer_token_file: Path | None = None
    metrics_token_file: Path | None = None
    admin_token: SecretStr = SecretStr("")
    infer_token: SecretStr = SecretStr("")

    # Let callers without a token run models and read metrics (and, if there are no tokens at all,
    # everything), also on addresses that other machines reach.
    allow_unauthenticated: bool = False

    # Devices, comma-separated: cpu, cpu:0-7 (these cores), cuda:0. One that cannot be used is left
    # out while others can. Threads of each CPU device; 0: one a core, or as many as a quota of CPU
    # time pays for.
    devices: Listed = ("cpu",)
    threads: int = Field(default=0, ge=0, le=1024)

    # Each thread of a CPU device stays on one core, and under a quota of CPU time the server on as
    # many as it pays for. Turn it off where servers share cores.
    pin_threads: bool = True

    # Memory of all processes of the server. 0: 80 % of what the machine or the container may use.
    # Limits of memory below that are 0 are parts of it, which add up to it.
    memory_bytes: ByteSize = Field(default=ByteSize(0), ge=0)

    # The server is ready once the models of its store are loaded, at the latest after so many
    # seconds; 0: at once. Those that are pinned are loaded in any case.
    restore_seconds: float = Field(default=30.0, ge=0, le=3600)

    # What one caller may send.
    max_upload_bytes: ByteSize = Field(default=ByteSize(2 * GIB), ge=1)
    max_samples_bytes: ByteSize = Field(default=ByteSize(64 * MIB), ge=1)
    max_message_bytes: ByteSize = Field(default=ByteSize(64 * MIB), ge=64 * KIB, lt=2 * GIB)

    # Uploads under way at once: in all, and of one machine. One that stands still for so many
    # seconds is ended.
    max_concurrent_uploads: int = Field(default=8, ge=1)
    max_caller_uploads: int = Field(default=6, ge=1)
    upload_idle_seconds: float = Field(default=60.0, gt=0)

    # Memory of requests that wait or are computed and of answers that are not read yet: of all
    # calls on one connection (a stream has a quarter of it), and of all. What exceeds it waits and
    # is not read.
    connection_memory_bytes: ByteSize = Field(default=ByteSize(256 * MIB), ge=MIB)
    calls_memory_bytes: ByteSize = Field(default=ByteSize(0), ge=0)

    # Registered model versions, and what the store may take on disk; 0: as much as there is.
    max_models: int = Field(default=1000, ge=1)
    max_store_bytes: ByteSize = Field(default=ByteSize(0), ge=0)

    # Requests that may wait in the queue of one model; rows: four times as many, at least 4096.
    max_queue_requests: int = Field(default=1024, ge=1)

    # A request that would wait longer than this for the device is refused at once; 0: no limit.
    max_queue_ms: float = Field(default=0.0, ge=0)

    # Longest wait for more rows while the device is idle; taken only where it is expected to pay.
    max_batch_wait_ms: float = Field(default=5.0, ge=0, le=10_000)

    # Under load, batches of a CPU device run side by side on parts of its threads where that was
    # measured to compute more; registrations measure it. Off: one after the other on all threads.
    side_by_side: bool = True

    # Largest share of requests for plans that are not the best, which service compares (0: none).
    plan_explore_share: float = Field(default=0.1, ge=0, le=0.5)

    # A run on a device is ended when it takes 20 times as long as its plan did when that was
    # prepared, but not before a third of this time, and at its end at the latest.
    max_run_seconds: float = Field(default=60.0, gt=0, le=86_400)

    # Memory that tensors cross into a device worker through, per device.
    shared_memory_bytes: ByteSize = Field(default=ByteSize(0), ge=0)

    # What a process that serves on a CPU may allocate for weights and activations; what needs more
    # is refused.
    worker_memory_bytes: ByteSize = Field(default=ByteSize(0), ge=0)

    # Clients of the Open Inference Protocol may name objects under /dev/shm to read tensors from
    # and write them to. Any object that the server's user may open: for trusted clients only.
    system_shared_memory: bool = False

    # Seconds after SIGTERM in which the server says that it is not ready and still takes requests,
    # for balancers that ask for its health; then those that accepted requests get to finish.
    shutdown_delay_seconds: float = Field(default=0.0, ge=0, le=3600)
    drain_seconds: float = Field(default=30.0, ge=0, le=3600)

    # Limits of the importer process, one per upload. Memory: beyond that of its libraries. Its CPU
    # time is two thirds of the time by the clock; one run of the model has a limit of its own.
    import_memory_bytes: ByteSize = Field(default=ByteSize(0), ge=0)
    import_wall_seconds: float = Field(default=900.0, gt=0)
    import_run_seconds: float = Field(default=30.0, gt=0)

    # CPU time of the search for plans, of each batch size.
    planner_search_seconds: float = Field(default=1800.0, gt=0)

    # A plan serves only if its outputs agree this well with the sequential ones, relative to the
    # largest output.
    tolerance: float = Field(default=1e-4, gt=0, le=1)

    # Models registered at start, comma-separated NAME=FILE; a folder means the .onnx file in it.
    preload: Annotated[Listed, _each("(?s)[^=]+=.+", "NAME=FILE")] = ()

    # A folder in Triton's layout (NAME/VERSION/model.onnx, config.pbtxt) whose models serve, and
    # whose changes are followed. The server is ready only while they answer, but for broken ones.
    model_repository: Annotated[
        Path | None,
        BeforeValidator(lambda given: given or None),
        AfterValidator(lambda path: path and path.expanduser().absolute()),
    ] = None

    # Names of models, comma-separated: the server is ready only while all of them answer. *: all
    # of the repository, also those whose files cannot serve.
    ready_models: Listed = ()

    # In idle time, plans are compared on inputs of requests, and padded requests are checked again.
    compare_again: bool = True

    # Triton's nv_inference_* names beside Braid's own metrics.
    triton_metrics: bool = False

    # OpenTelemetry spans of inference requests: off, otlp (OTEL_EXPORTER_OTLP_ENDPOINT says where
    # to) or console. Needs the packages of `pip install 'braid-serve[tracing]'`.
    tracing: Literal["off", "otlp", "console"] = "off"

    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        BeforeValidator(lambda given: given.upper() if isinstance(given, str) else given),
    ] = "INFO"
    log_format: Literal["json", "text"] = "text"

    @field_validator("devices")
    @classmethod
    def _known_devices(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.text for name in parse_devices(value))

    @field_validator("worker_memory_bytes")
    @classmethod
    def _room_for_libraries(cls, value: ByteSize) -> ByteSize:
        if 0 < value < LEAST_WORKER_BYTES:
            least = LEAST_WORKER_BYTES // MIB
            raise ValueError(f"give at least {least}MiB: the libraries alone take 300; or 0")
        return value

    @field_validator("calls_memory_bytes", "shared_memory_bytes", "import_memory_bytes")
    @classmethod
    def _enough_or_a_part(cls, value: ByteSize, info: ValidationInfo) -> ByteSize:
        smallest = LEAST_IMPORT_BYTES if info.field_name == "import_memory_bytes" else MIB
        if 0 < value < smallest:
            raise ValueError(f"give at least {ByteSize(smallest).human_readable()}; or 0")
        return value

    @field_validator("store")
    @classmethod
    def _absolute_store(cls, value: Path) -> Path:
        if not str(value).strip():
            raise ValueError("name a folder")
        if os.fsencode(value).decode(errors="ignore") != str(value):
            raise ValueError("give a path in UTF-8")
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _whole_tls(self) -> Settings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("BRAID_TLS_CERTIFICATE and BRAID_TLS_KEY go together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("BRAID_TLS_CLIENT_CA needs BRAID_TLS_CERTIFICATE and BRAID_TLS_KEY")
        return self

    @model_validator(mode="after")
    def _metrics_tokens_beside_others(self) -> Settings:
        others = self.admin_token_file, self.infer_token_file, self.admin_token, self.infer_token
        has_others = any(value not in (None, SecretStr("")) for value in others)
        if not has_others and self.metrics_token_file:
            raise ValueError(
                "BRAID_METRICS_TOKEN_FILE needs tokens of another role: without any, everyone may "
                "do everything"
            )
        return self

    @model_validator(mode="after")
    def _parts_of_memory(self) -> Settings:
        """Let limits that are 0 be parts of the budget."""
        budget = self.memory_bytes or ByteSize(usual_budget_bytes())
        object.__setattr__(self, "memory_bytes", budget)  # frozen once this returns
        parts = self._parts()
        for name in _PARTS_OF_MEMORY:
            if not getattr(self, name):
                object.__setattr__(self, name, parts[name])
        return self

    def _parts(self) -> dict[str, ByteSize]:
        on_cpu = [device for device in parse_devices(self.devices) if device.gpu is None]
        return memory_parts(self.memory_bytes, len(on_cpu))

    @property
    def bench_memory_bytes(self) -> int:
        """Memory of a process that registrations measure in."""
        return self._parts()["bench_memory_bytes"]

    @property
    def planner_memory_bytes(self) -> int:
        """Memory of a search for plans: of what the budget leaves."""
        return self.bench_memory_bytes // 2

    @property
    def import_together_bytes(self) -> int:
        """Memory of the imports beside one that may take all of ``import_memory_bytes``."""
        return self._parts()["import_together_bytes"]

    @model_validator(mode="after")
    def _two_ports(self) -> Settings:
        if self.grpc_port == self.http_port != 0:
            raise ValueError(f"BRAID_GRPC_PORT and BRAID_HTTP_PORT are both {self.grpc_port}")
        return self

    @field_validator("admin_address")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        if value and not (value.startswith("unix:/") or is_host_and_port(value)):
            raise ValueError("give HOST:PORT, or unix:/PATH")
        return value

    @property
    def import_limits(self) -> ImportLimits:
        return ImportLimits(
            memory_bytes=self.import_memory_bytes,
            cpu_seconds=max(1, int(self.import_wall_seconds * 2 / 3)),
            wall_seconds=self.import_wall_seconds,
            run_seconds=self.import_run_seconds,
        )


def load_settings(overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the environment, then let ``overrides`` (the command line) win where not None.

    Raises StartupError: one line that names every bad variable, its value and what is allowed.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = "; ".join(_problem(item, given) for item in error.errors())
        raise StartupError(f"bad settings: {problems}") from None


def shown_settings(settings: Settings) -> dict[str, str]:
    return {
        f"{PREFIX}{name.upper()}": _shown(name, value)
        for name, value in settings
        if value not in (None, (), "") and value != SecretStr("")
    }


def _shown(name: str, value: Any) -> str:
    if name == "database":
        return without_password(value.get_secret_value())
    if any(word in name for word in _SECRET):
        return "set"
    if isinstance(value, ByteSize):
        return value.human_readable()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_SECRET = ("token", "password", "secret", "key")


def _problem(item: Any, given: Mapping[str, Any]) -> str:
    reason = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if not item["loc"]:
        return reason  # of several settings together; their values may be secret
    name = str(item["loc"][0])
    source = f"--{name.replace('_', '-')}" if name in given else f"{PREFIX}{name.upper()}"
    given_text = without_password(str(item["input"]))[:100]
    return f"{source}={given_text!r} {reason}".replace("\n", " ")
