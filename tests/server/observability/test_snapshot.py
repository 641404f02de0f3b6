import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from unittest.mock import Mock, create_autospec

from prometheus_client import CollectorRegistry, generate_latest

from braid.compiler.options import ModelOptions
from braid.core.device_state import UNKNOWN, DeviceState
from braid.engine.link.messages import ModelMemory
from braid.server.devices.device import Device
from braid.server.observability.metrics import Metrics, checkout_commit, tell_build
from braid.server.observability.snapshot import Snapshot, SnapshotGauges, private_bytes
from braid.server.store.records import ModelStatus, ModelVersion

LENET = ModelVersion("lenet", 1, "ab" * 32, 10, ModelOptions(), ModelStatus.SERVING)
LOADING = replace(LENET, version=2, sha256="cd" * 32, state=ModelStatus.LOADING)
FAILED = replace(LENET, version=3, sha256="ef" * 32, state=ModelStatus.FAILED)


def device(
    name: str = "cpu",
    models: Mapping[str, ModelMemory] = MappingProxyType({}),
    *,
    pids: Mapping[str, int] = MappingProxyType({}),
    limit_bytes: int = 0,
    gpu_bytes: int | None = None,
    state: DeviceState = UNKNOWN,
) -> tuple[Device, Mapping[str, ModelMemory]]:
    plain = create_autospec(Device, instance=True, answers=True, pids=pids, state=state)
    plain.name, plain.gpu_reserved_bytes = name, gpu_bytes
    plain.link = Mock(**{"options.memory_bytes": limit_bytes})
    plain.arena = Mock(used_bytes=0, size_bytes=0)
    return plain, models


def scraped(
    versions: Sequence[tuple[ModelVersion, bool]] = (),
    devices: Sequence[tuple[Device, Mapping[str, ModelMemory]]] = (),
    *,
    store: Path = Path("/nonexistent"),
    limit_bytes: int = 0,
) -> list[str]:
    metrics = Metrics()
    metrics.snapshot.watch(lambda: Snapshot(True, versions, devices), store, limit_bytes)
    metrics.snapshot.look()
    metrics.snapshot.read()
    return generate_latest(metrics.registry).decode().splitlines()


def test_devices_tell_how_far_their_cores_are_from_each_other() -> None:
    apart = DeviceState(((0, 1), (2,)), ((0, 45, 370), (45, 0, 360), (370, 360, 0)))

    lines = scraped(devices=[device(state=apart), device("cpu:1")])

    assert [line for line in lines if line.startswith("braid_core_distance_ns{")] == [
        'braid_core_distance_ns{cores="nearest",device="cpu"} 45.0',
        'braid_core_distance_ns{cores="farthest",device="cpu"} 370.0',
    ]


def test_each_version_has_its_state_and_whether_it_answers() -> None:
    lines = scraped([(LENET, True), (LOADING, False)])

    assert "braid_ready 1.0" in lines
    assert 'braid_model_ready{model="lenet",version="1"} 1.0' in lines
    assert 'braid_model_ready{model="lenet",version="2"} 0.0' in lines
    assert 'braid_model_state{model="lenet",state="SERVING",version="1"} 1.0' in lines
    assert 'braid_model_state{model="lenet",state="LOADING",version="2"} 1.0' in lines


def test_a_failed_version_is_counted_and_has_no_series() -> None:
    lines = scraped([(LENET, True), (FAILED, False)])

    assert 'braid_models{state="FAILED"} 1.0' in lines
    assert 'braid_models{state="DAMAGED"} 0.0' in lines
    assert not [line for line in lines if 'version="3"' in line]


_TAKES_MEMORY = """
import mmap, sys
kept = []
for line in sys.stdin:
    kind = mmap.MAP_SHARED if line.strip() == "shared" else mmap.MAP_PRIVATE
    kept.append(mmap.mmap(-1, 32 << 20, flags=kind))
    for page in range(0, 32 << 20, mmap.PAGESIZE):
        kept[-1][page] = 1
    print("done", flush=True)
"""


def test_the_private_memory_of_a_process_is_its_own_and_not_what_it_shares() -> None:
    command = [sys.executable, "-u", "-c", _TAKES_MEMORY]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = []
        for kind in ("private", "shared", "private"):
            process.stdin.write(f"{kind}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            seen.append(private_bytes(process.pid) or 0)
        process.stdin.close()

    first, with_shared, with_own = seen
    assert first > 24 << 20
    assert with_shared - first < 16 << 20
    assert with_own - with_shared > 24 << 20


def test_workers_are_told_apart_and_one_that_ended_has_no_series() -> None:
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)

    lines = scraped(
        devices=[device(pids={"serving": os.getpid(), "bench": gone}, limit_bytes=5, gpu_bytes=7)]
    )

    memory = [line for line in lines if line.startswith("braid_worker_memory_bytes{")]
    assert len(memory) == 2
    assert any('memory="host",process="serving"' in line for line in memory)
    assert 'braid_worker_memory_bytes{device="cpu",memory="gpu",process="serving"} 7.0' in memory
    assert 'braid_worker_memory_limit_bytes{device="cpu"} 5.0' in lines


def test_memory_of_models_is_exported_for_versions_that_answer() -> None:
    held = {
        LENET.sha256: ModelMemory(100, 0, 20, sessions=50),
        LOADING.sha256: ModelMemory(1, 300, 40, gpu_reserved=1000),
    }

    lines = scraped([(LENET, True), (LOADING, False)], [device(models=held)])

    memory = {line for line in lines if line.startswith("braid_model_memory_bytes{")}
    labels = 'device="cpu",kind="%s",memory="host",model="lenet",version="1"'
    assert memory == {
        f"braid_model_memory_bytes{{{labels % 'weights'}}} 100.0",
        f"braid_model_memory_bytes{{{labels % 'activations'}}} 20.0",
        f"braid_model_memory_bytes{{{labels % 'sessions'}}} 50.0",
    }


def test_weights_on_a_gpu_are_told_apart_from_those_on_the_host() -> None:
    held = {LENET.sha256: ModelMemory(100, 300, 40, gpu_reserved=1000)}

    lines = scraped([(LENET, True)], [device("cuda:0", held)])

    sizes = [line.rsplit(" ", 1)[1] for line in lines if 'memory="gpu",model="lenet"' in line]
    assert sorted(sizes) == ["300.0", "40.0"]


def test_the_store_is_measured_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "sub" / "b").write_bytes(b"x" * 234)

    lines = scraped(store=tmp_path, limit_bytes=5000)

    assert "braid_store_bytes 1234.0" in lines
    assert "braid_store_limit_bytes 5000.0" in lines
    (free,) = [line for line in lines if line.startswith("braid_store_free_bytes ")]
    assert float(free.split()[1]) > 0


def test_the_store_is_not_walked_for_each_scrape(tmp_path: Path) -> None:
    now = [0.0]
    registry, gauges = CollectorRegistry(), SnapshotGauges(lambda: now[0])
    registry.register(gauges)
    gauges.watch(Snapshot, tmp_path)

    def seen() -> float | None:
        gauges.read()
        return registry.get_sample_value("braid_store_bytes")

    assert seen() == 0
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert seen() == 0
    now[0] = 61.0
    assert seen() == 10


def test_what_runs_is_told_without_loading_it() -> None:
    metrics = Metrics()
    tell_build(metrics.registry, "c0ffee")

    (line,) = [
        line
        for line in generate_latest(metrics.registry).decode().splitlines()
        if line.startswith("braid_build_info{")
    ]

    assert 'commit="c0ffee"' in line
    assert f'torch="{version("torch")}"' in line
    assert f'onnxruntime="{version("onnxruntime")}"' in line
    assert line.endswith(" 1.0")


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert checkout_commit(tmp_path) == ""
