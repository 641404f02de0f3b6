"""Engines: other runtimes behind one interface, each in a file of its own.

    a model's file, or a part of it ──Engine.compile──> Whole ──run_into──> outputs
    (engine/program/model_part.py)        └── on some threads and cores, in a precision

    engine/program/onnxruntime_session.py     ONNX Runtime
    engine/program/openvino_model.py          OpenVINO

A further engine needs its file, its line in the table of CPUs (engine/cpu/device_key.py), and its
name in braid.core.runtimes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from braid.core.graph import OpGraph
from braid.core.precision import FP32
from braid.engine.runtime.arrays import Array, Arrays

Constant = Callable[[str], Array | None]  # content by name; None: it is no constant


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Threads and cores that a model runs on."""

    threads: int  # of one run, the caller's included
    cpus: Sequence[int] = ()  # the core of each one; empty leaves them to the kernel
    device_cpus: Sequence[int] = ()  # those of all of the device, if ``cpus`` is a part of it
    callers: int = 1  # threads that run it at once
    spins: bool = True  # whether threads without work spin while a run lasts


class Whole(Protocol):
    """A model, or a part of one, in an engine; ready for any of its shapes."""

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs by name; ``PreconditionFailed`` if the model does not run at these shapes."""

    def run_into(self, inputs: Arrays, outputs: Arrays) -> None: ...

    def ready_for(self, inputs: Arrays) -> None:
        """Do at once what the first run on arrays of these shapes would; their content is none."""

    @property
    def holders(self) -> Sequence[object]:
        """What holds the weights, each of them once; wholes of equal content may share some."""


class Engine(Protocol):
    """A runtime of braid.core.runtimes on one kind of device."""

    @property
    def is_installed(self) -> bool: ...

    @property
    def version(self) -> str:
        """Version of the library; what was measured on one says nothing of another."""

    def check(self, graph: OpGraph, constant: Constant) -> None:
        """Raise ``PreconditionFailed`` for an operator by which a request could end the process."""

    def compile(
        self,
        model: Path | bytes,
        on: EnginePlace,
        precision: str = FP32,
        *,
        any_shape: bool = False,
    ) -> Whole:
        """Make an ONNX model ready to run: its file, or its content without data in other files.

        ``any_shape``: shapes without end may come, so nothing is kept for each of them. Raises
        ``PreconditionFailed`` if the engine refuses it.
        """
