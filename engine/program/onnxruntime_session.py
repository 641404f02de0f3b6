"""A whole model in ONNX Runtime, as one more way to run it on a device.

The importer read the file, ran it in its sandbox and kept it in the artefact. A session gets as
many threads as the device has, on the device's cores. They spin only while a run lasts: left to
itself, ONNX Runtime's pool would spin on into whatever the device does next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
from ml_dtypes import bfloat16

from braid.core.errors import PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.precision import FP32
from braid.engine.onnx.division import divides_integers
from braid.engine.ops.session_run import new_session, run_session
from braid.engine.ops.whole import KIND
from braid.engine.program.engines import Constant, EnginePlace
from braid.engine.program.model_file import reason_of
from braid.engine.runtime.arrays import Array, Arrays, address_of
from braid.engine.runtime.stopping import stoppable_session_run

Provider = tuple[str, Mapping[str, str]]  # name, options

CPU_PROVIDER: Provider = ("CPUExecutionProvider", {})
CUDA_PROVIDER: Provider = ("CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"})

_BF16 = 16  # of ONNX's TensorProto, which names types that numpy has not

MAX_BOUND = 1024  # bindings of addresses that a session keeps


def check_division(graph: OpGraph, constant: Constant) -> None:
    """Raise ``PreconditionFailed`` if a request can have the least integer divided by -1.

    ONNX Runtime leaves that to the processor, which ends the process (SIGFPE).
    """
    for unit in graph.operators:
        if unit.kind == KIND and _is_guarded(constant(unit.inputs[0])):
            raise PreconditionFailed(
                "some content would end the process in ONNX Runtime; only a guarded form of the "
                "model runs there"
            )
        if unit.kind != "aten.div" or graph.spec(unit.outputs[0]).dtype not in ("INT32", "INT64"):
            continue
        divisor = constant(unit.inputs[1])
        if divisor is None or bool((divisor == -1).any()):
            raise PreconditionFailed(
                f"ONNX Runtime may divide the least integer by -1 in {unit.name!r}, which would "
                "end the worker"
            )


def _is_guarded(model: Array | None) -> bool:
    assert model is not None, "a whole model is a constant"
    content = model.tobytes()
    if any(kind in content for kind in (b"DeformConv", b"STFT")):
        return True
    return b"Div" in content and divides_integers(onnx.load_from_string(content))


class OnnxSession:
    """One model, ready for any of its shapes. One run at a time."""

    def __init__(
        self,
        model: Path | bytes,
        on: EnginePlace,
        provider: Provider = CPU_PROVIDER,
        *,
        any_shape: bool = False,
    ) -> None:
        """Open a model: its file or content.

        ``any_shape``: keep no memory pattern, which ONNX Runtime keeps for every shape. Raises
        ``PreconditionFailed`` if ONNX Runtime refuses it or has no such provider.
        """
        import onnxruntime  # half a second that only sessions need

        if provider[0] not in onnxruntime.get_available_providers():
            raise PreconditionFailed(f"this ONNX Runtime is built without {provider[0]}")
        try:
            options = _options(onnxruntime, on)
            options.enable_mem_pattern = not any_shape
            self._session = new_session(model, options, provider)
        except Exception as error:  # its exceptions share no base but this
            raise PreconditionFailed(
                f"ONNX Runtime refuses the model: {reason_of(error)}"
            ) from error
        if self._session.get_providers()[0] != provider[0]:  # it said so, and took the CPU
            raise PreconditionFailed(f"ONNX Runtime cannot use {provider[0]} here")
        self._outputs = [output.name for output in self._session.get_outputs()]
        # What is bound for a device is copied there when it is bound, not later.
        self._binds = provider[0] == CPU_PROVIDER[0]
        self._bound: dict[Any, Any] = {}  # by addresses and shapes

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Raises ``PreconditionFailed`` at shapes that the model refuses, or ``RunStopped``."""
        feeds = {name: np.asarray(array, order="C") for name, array in inputs.items()}
        with stoppable_session_run() as options:
            try:
                results = run_session(self._session, self._outputs, feeds, options)
            except Exception as error:
                raise PreconditionFailed(
                    f"ONNX Runtime cannot run it: {reason_of(error)}"
                ) from error
        return dict(zip(self._outputs, map(np.asarray, results), strict=True))

    def run_into(self, inputs: Arrays, outputs: Arrays) -> None:
        """As ``run``, into ``outputs``, contiguous as the inputs are.

        What both occupy is remembered, so that the next run on the same memory is bound already.
        """
        if self._binds:
            try:
                self._run_bound(inputs, outputs)
            except PreconditionFailed:  # as where a file declares other extents than outputs have
                self._run_and_copy(inputs, outputs)
                self._binds = False
        else:
            self._run_and_copy(inputs, outputs)

    def ready_for(self, inputs: Arrays) -> None:
        """Do nothing: the session was made ready when it was opened."""

    @property
    def holders(self) -> Sequence[object]:
        return (self,)

    def _run_and_copy(self, inputs: Arrays, outputs: Arrays) -> None:
        for name, array in self.run(inputs).items():
            place = outputs[name]
            if array.shape != place.shape:
                raise PreconditionFailed(
                    f"ONNX Runtime cannot run it: output {name!r} is {list(array.shape)}, and "
                    f"not {list(place.shape)}"
                )
            place[...] = array

    def _run_bound(self, inputs: Arrays, outputs: Arrays) -> None:
        arrays = (*inputs.values(), *outputs.values())
        key = tuple([(address_of(array), array.shape) for array in arrays])
        with stoppable_session_run() as options:
            try:
                bound = self._bound.get(key)
                if bound is None:
                    bound = self._bind(inputs, outputs)
                    if len(self._bound) >= MAX_BOUND:
                        self._bound.clear()
                    self._bound[key] = bound
                self._session.run_with_iobinding(bound, options)
            except Exception as error:
                raise PreconditionFailed(
                    f"ONNX Runtime cannot run it: {reason_of(error)}"
                ) from error

    def _bind(self, inputs: Arrays, outputs: Arrays) -> Any:
        bound = self._session.io_binding()
        for bind, arrays in ((bound.bind_input, inputs), (bound.bind_output, outputs)):
            for name, array in arrays.items():
                dtype = _BF16 if array.dtype == bfloat16 else array.dtype
                bind(name, "cpu", 0, dtype, list(array.shape), address_of(array))
        return bound


@dataclass(frozen=True)
class OnnxRuntime:
    """ONNX Runtime as an ``Engine``."""

    provider: Provider = CPU_PROVIDER
    is_installed: bool = True  # Braid requires it: the import compares with it

    @cached_property
    def version(self) -> str:
        return version("onnxruntime")

    @cached_property
    def _sessions(self) -> WeakValueDictionary[tuple[object, ...], OnnxSession]:
        """By content: it packs weights again in each session, so equal content shares one."""
        return WeakValueDictionary()

    def check(self, graph: OpGraph, constant: Constant) -> None:
        check_division(graph, constant)

    def compile(
        self,
        model: Path | bytes,
        on: EnginePlace,
        precision: str = FP32,
        *,
        any_shape: bool = False,
    ) -> OnnxSession:
        if isinstance(model, Path):
            return OnnxSession(model, on, self.provider, any_shape=any_shape)
        place = on.threads, tuple(on.cpus), on.callers, on.spins
        key = sha256(model).digest(), place, any_shape
        session = self._sessions.get(key)
        if session is None:
            session = OnnxSession(model, on, self.provider, any_shape=any_shape)
            self._sessions[key] = session
        return session


def _options(onnxruntime: Any, on: EnginePlace) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = on.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(on.spins)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if len(on.cpus) == on.threads > 1:
        # One list a thread of its pool, which the caller is not in; it counts cores from 1.
        affinities = ";".join(str(cpu + 1) for cpu in on.cpus[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    return options
