"""``make gpu-dry``: a CUDA build of torch, the runtime in software, and the tests under it.

    python3 -m tests.gpu_dry --venv .venv-cuda [arguments of pytest]

Runs with the standard library alone. The environment is made where there is none: what Braid and
these tests need, with the CUDA build of torch that PyPI has, 5 GB.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT

HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build/gpu-dry"

FREE_BYTES = 12 << 30
"""For the environment and the wheels that pip keeps of it."""

PACKAGES = ("hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-timeout", "trustme")

RUNTIME = BUILD / "libgpu_dry.so"
DRIVER = BUILD / "libcuda.so.1"
ENGINES = BUILD / "cudnn_engines"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_dry", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-cuda")
    options, arguments = parser.parse_known_args()
    venv = options.venv.absolute()
    if reason := missing(venv):
        print(f"gpu-dry: {reason}", file=sys.stderr)
        return 1
    python = venv / "bin/python"
    if not python.exists():
        install(venv)
    site = Path(_output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    build(site)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **preloaded()}
    pytest: list[str | Path] = [python, "-m", "pytest", "-W", "default", "-p", "no:cacheprovider"]
    tests = arguments or [str(HERE.relative_to(ROOT))]
    return subprocess.run([*pytest, *tests], cwd=ROOT, env=environment).returncode


def missing(venv: Path) -> str:
    """One line about what has to be there first; "" if all is."""
    if shutil.which("g++") is None:
        return "g++ is missing (apt-get install g++)"
    free = shutil.disk_usage(ROOT).free
    if not (venv / "bin/python").exists() and free < FREE_BYTES:
        needed, there = FREE_BYTES >> 30, free / 2**30
        return f"{venv} would need {needed} GB of disk, {there:.1f} are free; --venv names another"
    return ""


def install(venv: Path) -> None:
    """Make the environment; an unfinished one does not stay."""
    print(f"gpu-dry: making {venv}, 5 GB", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip: list[str | Path] = [
            venv / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "-c",
            "constraints.txt",
        ]
        version = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        assert version is not None
        torch = f"torch==={version[1]}"  # to the letter: no local version, as CPU builds have
        subprocess.run([*pip, torch, "-e", ".", *PACKAGES], cwd=ROOT, check=True)
    except BaseException:
        shutil.rmtree(venv, ignore_errors=True)
        raise


def build(site: Path) -> None:
    """Compile what is older than its source against the headers of NVIDIA's and Triton's wheels."""
    runtime = next(site.glob("nvidia/**/include/cuda_runtime_api.h"), None)
    cudnn = next(site.glob("nvidia/**/include/cudnn.h"), None)
    if runtime is None or cudnn is None:
        raise SystemExit(f"gpu-dry: {site} holds no CUDA build of torch with NVIDIA's headers")
    triton = site / "triton/backends/nvidia/include"  # has crt/, which NVIDIA's wheel leaves out
    headers = [f"-I{folder}" for folder in (runtime.parent, cudnn.parent, triton)]
    compiler = ["g++", "-std=c++17", "-O1", "-Wall", *headers]
    shared = ["-shared", "-fPIC", "-ldl"]
    sources = HERE / "runtime"
    cudnn_library = next(cudnn.parents[1].glob("lib/libcudnn.so.*"))
    linked = [str(cudnn_library), f"-Wl,-rpath,{cudnn_library.parent}", "-ldl"]
    _compile(compiler, [sources / "cudart.cpp", sources / "libraries.cpp"], RUNTIME, shared)
    _compile(compiler, [sources / "cuda.cpp"], DRIVER, [*shared, f"-Wl,-soname,{DRIVER.name}"])
    _compile(compiler, [HERE / "cudnn_engines.cpp"], ENGINES, linked)


def _compile(
    compiler: Sequence[str], sources: Sequence[Path], target: Path, options: Sequence[str]
) -> None:
    newest = max(source.stat().st_mtime for source in sources)
    if target.exists() and target.stat().st_mtime >= newest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.new")  # processes may run on the older one
    subprocess.run([*compiler, *map(str, sources), "-o", aside, *options], check=True)
    aside.replace(target)


def preloaded() -> dict[str, str]:
    """Environment of processes that find the runtime and the driver in software."""
    return {
        "LD_PRELOAD": str(RUNTIME),
        "LD_LIBRARY_PATH": str(BUILD),
        "TRITON_LIBCUDA_PATH": str(BUILD),
        "TRITON_CACHE_DIR": str(BUILD / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor"),
    }


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
