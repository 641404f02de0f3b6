"""Where the packages are: ``braid.core`` in ``core/``, and so on."""

from setuptools import Extension, find_packages, setup

FOLDERS = ("charts", "core", "engine", "scheduler", "server")

setup(
    packages=[
        f"braid.{package}"
        for package in find_packages(include=[*FOLDERS, *(f"{each}.*" for each in FOLDERS)])
    ],
    package_dir={f"braid.{each}": each for each in FOLDERS},
    ext_modules=[
        Extension(
            "braid.engine.cpu.native._lanes",
            sources=["engine/cpu/native/lanes.c"],
            extra_compile_args=["-O2", "-fopenmp"],
            extra_link_args=["-fopenmp"],
            optional=True,  # without a C compiler, plans run from Python
        )
    ],
)
