"""Reference of an import: ONNX Runtime on the file as it was uploaded.

Optimisations are off, so that the reference shares no rewriting with anything else, and so are
memory arenas and spinning threads. Only for models that multiply integers, on CPUs that saturate
sums of 8-bit products, they are on, as ONNX Runtime is exact with them alone. Where it cannot load
a model (an operator set newer than it knows), onnx's own reference implementation takes its place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import onnx
import onnxruntime
from torch import Tensor

from braid.core.errors import ModelImportError
from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.ops.session_run import new_session, run_session
from braid.engine.ops.whole import as_array, as_tensor
from braid.engine.runtime.instructions import has_integer_instructions

THREADS = 1

Words = Mapping[str, Sequence[str]]  # strings that a model compares its inputs with, by input

NO_WORDS: Words = MappingProxyType({})


class ReferenceFailed(Exception):
    """Refusal of a reference to run the model on some inputs; the message is its reason."""


class ReferenceModel(Protocol):
    """Independent implementation of the uploaded model."""

    name: str
    words: Words  # strings to try

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by name; ``ReferenceFailed`` if the model does not run on these inputs."""
        ...

    def reordered(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same outputs with other rounding; ``ReferenceFailed`` if there is no other way."""
        raise ReferenceFailed("it computes in one way only")


class _OnnxRuntime(ReferenceModel):
    @trial()
    def __init__(self, upload: Path, words: Words, *, on_integers: bool) -> None:
        self.words = words
        self._upload = upload
        levels = onnxruntime.GraphOptimizationLevel
        saturates = on_integers and not has_integer_instructions()
        level = levels.ORT_ENABLE_EXTENDED if saturates else levels.ORT_DISABLE_ALL
        self._session = _session(upload, level)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.name = f"onnxruntime {onnxruntime.__version__}"

    @trial()
    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._results(self._session, inputs)

    @trial()
    def reordered(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        optimised = _session(self._upload, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
        return self._results(optimised, inputs)

    def _results(
        self, session: onnxruntime.InferenceSession, inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        try:
            feeds = {name: as_array(tensor) for name, tensor in inputs.items()}
            results = run_session(session, self._outputs, feeds)
        except Exception as error:  # its exceptions share no base but this
            raise _failed(error) from error
        return _as_tensors(self._outputs, results)


def _session(upload: Path, level: object) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return new_session(upload, options)


class _OnnxReference(ReferenceModel):
    def __init__(self, upload: Path, words: Words) -> None:
        self.words = words
        from onnx.reference import ReferenceEvaluator  # 8 MiB: its table of all operator sets

        self._evaluator = ReferenceEvaluator(onnx.load(upload, load_external_data=False))
        self.name = f"onnx {onnx.__version__} reference"

    @trial()
    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            feeds = {name: as_array(tensor) for name, tensor in inputs.items()}
            results = self._evaluator.run(None, feeds)
        except Exception as error:  # whatever its Python kernels raise
            raise _failed(error) from error
        return _as_tensors(self._evaluator.output_names, list(results))


def open_reference(
    upload: Path, words: Words = NO_WORDS, newer: Path | None = None, *, on_integers: bool = False
) -> ReferenceModel:
    """Load the uploaded file into the first reference that takes it.

    ``words`` are strings to try, ``newer`` the model in an operator set that references know,
    ``on_integers``: it multiplies integers of 8 bits. Raises ``ModelImportError`` with ONNX
    Runtime's reason, or ``MemoryError``.
    """
    try:
        return _OnnxRuntime(upload, words, on_integers=on_integers)
    except Exception as error:
        failed = _failed(error)
        if newer not in (None, upload):
            return open_reference(newer, words, on_integers=on_integers)
        try:
            return _OnnxReference(upload, words)
        except Exception as second:
            if isinstance(second, MemoryError):
                raise
            raise ModelImportError(
                f"ONNX Runtime, the reference for every import, refuses the model: {failed}"
            ) from error


def _failed(error: Exception) -> ReferenceFailed:
    """Return the first line of a reference's error; a lack of memory is raised."""
    text = str(error)
    if isinstance(error, MemoryError) or "bad allocation" in text or "bad_alloc" in text:
        raise MemoryError(text) from error
    first = text.strip().partition("\n")[0]
    return ReferenceFailed((first or type(error).__name__)[:500])


def _as_tensors(names: Sequence[str], results: Sequence[object]) -> dict[str, Tensor]:
    tensors = {}
    for name, result in zip(names, results, strict=True):
        if not isinstance(result, np.ndarray | np.generic):
            raise ReferenceFailed(f"output {name!r} is a {type(result).__name__}, not a tensor")
        try:
            tensors[name] = as_tensor(result)
        except TypeError as error:
            raise ReferenceFailed(f"output {name!r}: {error}") from error
    return tensors
