"""Builds braid-serve: the packages ``braid.core`` in ``core/`` and so on, and what they require.

    checkout ──> requires the client in the folder beside this file
    sdist    ──> requires braid-client==VERSION, and so does a wheel made from the sdist

The version of both distributions stands in ``client/braid_client/version.py``.
"""

import runpy
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).resolve().parent
FOLDERS = ("charts", "compiler", "core", "engine", "library", "scheduler", "server")
VERSION = runpy.run_path(str(ROOT / "client/braid_client/version.py"))["__version__"]

is_sdist = "sdist" in sys.argv or (ROOT / "PKG-INFO").exists()
client = f"=={VERSION}" if is_sdist else f" @ {(ROOT / 'client').as_uri()}"

setup(
    version=VERSION,
    install_requires=[
        f"braid-client{client}",
        "grpcio>=1.81.1,<1.82",
        "grpcio-health-checking>=1.81.1,<1.82",
        "grpcio-reflection>=1.81.1,<1.82",
        "googleapis-common-protos>=1.65",
        "protobuf>=6.33.5,<7",
        "numpy>=1.26",
        "ml-dtypes>=0.5",
        "torch>=2.11",
        "onnx>=1.19",
        "onnxruntime>=1.20",
        "onnxscript>=0.5",  # torch.onnx demands it; for .pt2 files and braid.compile(module)
        "onednn-cpu-gomp>=2023.2; platform_machine == 'x86_64' and sys_platform == 'linux'",
        "safetensors>=0.5",
        "pydantic>=2.10",
        "pydantic-settings>=2.7",
        "prometheus-client>=0.24",
        "jinja2>=3.1.6,<4",
        "markupsafe>=3",
        "rich>=14",
        "shtab>=1.13",
        "sqlalchemy>=2.1,<3",
        "starlette>=1.10,<2",
        "uvicorn>=0.54,<0.55",  # braid.server.ports.http.connection extends its protocol
        "httptools>=0.9,<0.10",
        "orjson>=3.10,<4",
        "tritonclient[grpc]>=2.73,<2.74",
        "uvloop>=0.22",
        "watchfiles>=1.1,<2",
    ],
    packages=[
        "braid",
        *(
            f"braid.{package}"
            for package in find_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])
        ),
    ],
    package_dir={"braid": "braid", **{f"braid.{folder}": folder for folder in FOLDERS}},
    package_data={"braid": ["py.typed"], "braid.server.console": ["assets/*", "templates/*"]},
    include_package_data=False,  # it takes folders of assets for packages
    ext_modules=[
        Extension(
            "braid.engine.cpu.native._lanes",
            sources=["engine/cpu/native/lanes.c", "engine/cpu/native/winograd.c"],
            extra_compile_args=["-O2", "-fopenmp"],
            extra_link_args=["-fopenmp"],
            optional=True,  # without a C compiler, plans run from Python
        )
    ],
)
