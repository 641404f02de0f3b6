"""Device key: everything that a latency measured on this device depends on; its precisions."""

import platform
from collections.abc import Mapping

from braid.core.precision import BF16, FP32, INT8
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.engine.cpu.border import TORCH_VERSION, isa
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import find_onednn, onednn_version
from braid.engine.program.engines import Engine
from braid.engine.program.onnxruntime_session import OnnxRuntime
from braid.engine.program.openvino_model import OpenVino
from braid.engine.runtime.instructions import (
    cpu_fact,
    has_bf16_instructions,
    has_integer_instructions,
)

ENGINES: Mapping[str, Engine] = {ONNXRUNTIME: OnnxRuntime(), OPENVINO: OpenVino()}


def installed_engines() -> dict[str, Engine]:
    return {name: engine for name, engine in ENGINES.items() if engine.is_installed}


KERNELS_REVISION = 9  # raise it when kernels or timing change so much that old latencies mislead


def cpu_device_key(threads: int, cores: int, quota: float = 0.0) -> str:
    """Canonical text: ``cpu:AMD EPYC:cores=2:isa=AVX512:threads=2:torch=2.13.0+cpu:...``.

    Under a quota of CPU time it stands in place of the cores, so that containers of one size share
    schedules on machines of any size.
    """
    facts = {
        **({"quota": f"{quota:g}"} if quota else {"cores": str(cores)}),
        "isa": isa(),
        "threads": str(threads),
        "torch": TORCH_VERSION,
        "onednn": onednn_version(),
        "kernels": str(KERNELS_REVISION),
        **({"native": "none"} if find_onednn() and not find_native() else {}),
    }
    model = cpu_fact("model name") or platform.processor() or platform.machine()
    return ":".join(["cpu", model, *(f"{name}={value}" for name, value in facts.items())])


def offered_precisions() -> tuple[str, ...]:
    """FP32, and BF16 and INT8 where the CPU has instructions: emulated BF16 is slower than FP32."""
    narrow = (BF16,) if has_bf16_instructions() and find_onednn() is not None else ()
    return (FP32, *narrow, INT8) if has_integer_kernels() else (FP32, *narrow)


def has_integer_kernels() -> bool:
    """Whether oneDNN can sum 8-bit products in 32 bits; elsewhere it makes weights coarser."""
    return has_integer_instructions() and find_onednn() is not None


def software_versions() -> dict[str, str]:
    return {
        **{name: engine.version for name, engine in installed_engines().items()},
        "torch": TORCH_VERSION,
        "onednn": onednn_version(),
        "python": platform.python_version(),
    }
