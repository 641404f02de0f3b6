"""A whole model in OpenVINO, as one more way to run it on a CPU, in FP32 or BF16.

    file that the import kept ──read──> model ──shapes of a run──> compiled for them ──> requests

Compiled code is of static shapes: made for open ones it took 3 to 8 % longer (SqueezeNet,
GoogLeNet). It computes in the calling thread, with threads beside it
(openvino_library.py), and OpenVINO looks between operators whether a run is to end. Nothing is
cached in files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from ml_dtypes import bfloat16

from braid.core.errors import BraidError, PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.precision import BF16, FP32
from braid.engine.program import openvino_library as library
from braid.engine.program.engines import Constant, EnginePlace
from braid.engine.program.model_file import reason_of
from braid.engine.program.openvino_exactness import Bounds, exact_within
from braid.engine.program.openvino_library import tbb_threads
from braid.engine.runtime.arrays import Array, Arrays, address_of
from braid.engine.runtime.stopping import stop_signal

MAX_COMPILED = 64  # shapes that a model is compiled for at the same time, at most

_TYPES = {FP32: "f32", BF16: "bf16"}

_CANNOT = "OpenVINO cannot run it"

_CANCEL_AGAIN_S = 0.001

_models: WeakValueDictionary[bytes, Any] = WeakValueDictionary()
"""Models in use whose content was given, by its SHA-256: what is compiled of them shares weights,
but for those that it packs."""

_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class OpenVinoModel:
    """One model, compiled for each shapes that it runs at first. Several threads may run it."""

    def __init__(self, model: Path | bytes, on: EnginePlace, precision: str = FP32) -> None:
        """From a file or content; ``PreconditionFailed`` if OpenVINO refuses it."""
        self._cpus, self._device_cpus = tuple(on.cpus), tuple(on.device_cpus or on.cpus)
        self._properties = _properties(on.threads * on.callers, on.callers, precision)
        self._compiled: dict[_Shapes, _Compiled] = {}
        self._lock = threading.Lock()
        with _refused("OpenVINO refuses the model"), self._threads():
            self._library = library.load()
            self._core = self._library.Core()
            self._model = self._read(model)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        dense = {name: np.asarray(array, order="C") for name, array in inputs.items()}
        outputs = self._at(dense).new_outputs()
        self.run_into(dense, outputs)
        return outputs

    def run_into(self, inputs: Arrays, outputs: Arrays) -> None:
        compiled = self._at(inputs)
        compiled.bounds.check(inputs)
        with compiled.request() as request, _ended_by(request.cancel), _refused(_CANNOT):
            request.bind(inputs, outputs)
            request.infer()

    def ready_for(self, inputs: Arrays) -> None:
        self._at(inputs)

    @property
    def holders(self) -> Sequence[object]:
        return (self._model, *self._compiled.values())

    def _read(self, model: Path | bytes) -> Any:
        if isinstance(model, Path):
            return self._core.read_model(model)
        digest = sha256(model).digest()
        read = _models.get(digest)
        if read is None:
            read = _models[digest] = self._core.read_model(model)
        return read

    def _at(self, inputs: Arrays) -> _Compiled:
        shapes = tuple([(name, array.shape) for name, array in inputs.items()])
        compiled = self._compiled.get(shapes)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(shapes) or self._compile(shapes)
                if len(self._compiled) >= MAX_COMPILED:
                    self._compiled.pop(next(iter(self._compiled)))
                self._compiled[shapes] = compiled
        return compiled

    def _threads(self) -> AbstractContextManager[None]:
        """For all that OpenVINO does but runs: constants are folded, too, by its threads."""
        return tbb_threads.on(self._cpus, self._device_cpus)

    def _compile(self, shapes: _Shapes) -> _Compiled:
        if any(0 in shape for _, shape in shapes):
            raise PreconditionFailed("OpenVINO gets no empty tensors")
        with _refused(_CANNOT), self._threads():
            model = self._model.clone()
            model.reshape({name: list(shape) for name, shape in shapes})
            from openvino.passes import ConstantFolding, Manager

            manager = Manager()
            manager.register_pass(ConstantFolding())
            manager.run_passes(model)
            if any(port.get_partial_shape().is_dynamic for port in model.outputs):
                raise PreconditionFailed("the shapes of its outputs depend on content")
            bounds = exact_within(model)
            compiled = self._core.compile_model(model, "CPU", self._properties)
            ready = _Compiled(self._library, compiled, bounds)
            ready.warm_up()
        return ready


class OpenVino:
    """OpenVINO as an ``Engine``."""

    @property
    def is_installed(self) -> bool:
        return library.is_installed()

    @cached_property
    def version(self) -> str:
        return version("openvino")

    def check(self, graph: OpGraph, constant: Constant) -> None:
        """Refuse nothing: what it cannot run, it refuses when it is compiled."""

    def compile(
        self,
        model: Path | bytes,
        on: EnginePlace,
        precision: str = FP32,
        *,
        any_shape: bool = False,
    ) -> OpenVinoModel:
        return OpenVinoModel(model, on, precision)


class _Compiled:
    """A model for one set of shapes, and the requests that are not in use."""

    def __init__(self, library: Any, compiled: Any, bounds: Bounds) -> None:
        self.bounds = bounds
        self._library = library
        self._compiled = compiled
        self._idle: list[_Request] = []

    def warm_up(self) -> None:
        """Run on zeros, which makes the threads that are to work with this one."""
        request = self._compiled.create_infer_request()
        for tensor in request.input_tensors:
            tensor.data[...] = 0
        request.infer()

    def new_outputs(self) -> dict[str, Array]:
        outputs: dict[str, Array] = {}
        for port in self._compiled.outputs:
            element = port.get_element_type()
            is_bf16 = element == self._library.Type.bf16
            memory = np.empty(tuple(port.get_shape()), bfloat16 if is_bf16 else element.to_dtype())
            outputs |= dict.fromkeys(port.get_names(), memory)
        return outputs

    @contextmanager
    def request(self) -> Iterator[_Request]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = _Request(self._library, self._compiled.create_infer_request())
        yield request
        self._idle.append(request)


class _Request:
    """A request of OpenVINO, bound to the memory of the arrays that it ran on last."""

    def __init__(self, library: Any, request: Any) -> None:
        self._library = library
        self._request = request
        self._bound: dict[str, tuple[int, Any]] = {}  # address, tensor of OpenVINO
        self.infer = request.infer
        self.cancel = request.cancel

    def bind(self, inputs: Arrays, outputs: Arrays) -> None:
        for name, array in (*inputs.items(), *outputs.items()):
            address = address_of(array)
            if name not in self._bound or self._bound[name][0] != address:
                shared = self._shared(array)
                self._request.set_tensor(name, shared)
                self._bound[name] = address, shared

    def _shared(self, array: Array) -> Any:
        if array.dtype == bfloat16:  # of ml_dtypes, which OpenVINO does not know
            bits = array.view(np.uint16)
            return self._library.Tensor(bits, list(array.shape), self._library.Type.bf16)
        return self._library.Tensor(array, shared_memory=True)


@contextmanager
def _ended_by(cancel: Callable[[], None]) -> Iterator[None]:
    """Let ``cancel`` end the body, with ``RunStopped``, when the calling thread's run is to end.

    A request that does not run yet is not cancelled by it, so it is called until the body ends.
    """
    signal = stop_signal.get()
    if signal is None:
        yield
        return
    over = threading.Event()

    def cancel_until_over() -> None:
        while not over.wait(_CANCEL_AGAIN_S):
            cancel()

    def end() -> None:
        threading.Thread(target=cancel_until_over, name="openvino-cancel", daemon=True).start()

    with signal.ending_by(end):
        try:
            signal.check()
            yield
        finally:
            over.set()


@contextmanager
def _refused(doing: str) -> Iterator[None]:
    """Turn errors of OpenVINO, which share no class, into PreconditionFailed."""
    try:
        yield
    except BraidError:
        raise
    except Exception as error:
        raise PreconditionFailed(f"{doing}: {reason_of(error)}") from error


def _properties(threads: int, streams: int, precision: str) -> dict[str, object]:
    return {
        "INFERENCE_PRECISION_HINT": _TYPES[precision],
        "EXECUTION_MODE_HINT": "ACCURACY",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "CPU_DENORMALS_OPTIMIZATION": False,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": streams,
        "ENABLE_HYPER_THREADING": True,  # a device's threads may share cores: they are counted
        "ENABLE_CPU_PINNING": False,
        "CACHE_DIR": "",
    }
