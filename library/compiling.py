"""``braid.compile``: a model file or a torch module made ready to run on this machine."""

import asyncio
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from braid.compiler.options import ModelOptions
from braid.compiler.progress import ProgressReport, ReportProgress
from braid.core.errors import InvalidRequest
from braid.core.precision import FP32
from braid.core.regular_file import open_file
from braid.engine.importer.host.samples import Arrays, samples_file
from braid.engine.processes.fork_server import ForkServer
from braid.library.network import Network
from braid.library.pipeline import GivenFile, compile_file
from braid.scheduler.options import PORTFOLIO, PlannerSettings
from braid.server.settings import Settings, load_settings

T = TypeVar("T")

Samples = str | os.PathLike[str] | bytes | Arrays
"""Path of an .npz file, its bytes, or arrays by the names of the model's inputs."""

OnProgress = Callable[[float, str], None]
"""Told the part that is done, 0 to 1, and what is being done; in another thread."""

TRACED_ROWS = 2
"""Rows to trace with: torch.export takes a single row for a constant."""


def default_store() -> Path:
    """Return the usual folder of schedules and measurements, beside other caches of the user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "braid"


def compile(  # like torch's
    model: str | os.PathLike[str] | torch.nn.Module,
    example_inputs: Any = None,
    *,
    batch_sizes: Sequence[int] = (),
    precision: str = FP32,
    accept_error: float | None = None,
    samples: Samples | None = None,
    planner: str = PORTFOLIO,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    pad: Mapping[str, str] | None = None,
    lengths: Sequence[int] = (),
    device: str = "cpu",
    store: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Network:
    """Find the fastest plans of a model by measuring on this machine; returns it ready to run.

    The model goes through what a server does with it: a confined process imports it and checks its
    numbers, plans are searched, measured and compared. What was found is kept: compiling the same
    model again takes a moment.

    Args:
        model: path of an ONNX file, zipped ONNX model or ``.pt2``; or a torch module.
        example_inputs: of a module: a tensor, or a tuple of them, batch first.
        batch_sizes: rows that run together; each gets a plan of its own. None: 1, and larger ones
            that pay.
        precision: fp32, or another one that the device computes in; auto: the fastest of those.
        accept_error: outputs may be this far from FP32's, relative to the largest element of each;
            None: as far as is usual for the precision. What errs more does not run.
        samples: inputs to measure errors on: arrays by name, the first dimension counting samples,
            or an .npz file of them; None: seeded inputs. The import tries them where the model
            takes nothing that it can make up.
        planner: one of ``braid plan --help``; the portfolio takes the fastest of all.
        input_shapes: whole shapes, batch as 1, of inputs with other open extents.
        pad: axis along which calls may be padded -> "zeros" or "repeat" (of the last position);
            refused if trials of the import disagree.
        lengths: extents of that axis, each with plans of its own; shorter calls are padded to them
            where that is measured to be faster.
        device: ``cpu``, or some of its cores: ``cpu:0-7``.
        store: folder of schedules and measurements; None: ``~/.cache/braid``.
        on_progress: told how far it is.

    Raises:
        BraidError: one line that says what is wrong with the model or the arguments.
        OSError: the file cannot be read.
    """
    options = ModelOptions(
        batch_sizes=tuple(batch_sizes),
        planner=PlannerSettings.for_serving(planner),
        input_shapes={name: tuple(shape) for name, shape in (input_shapes or {}).items()},
        precision=precision,
        accepted_error=accept_error,
        pad=pad or {},
        lengths=",".join(map(str, lengths)),
    )
    settings = _settings(device, Path(store) if store is not None else default_store())
    with tempfile.TemporaryDirectory(prefix="braid-") as folder:
        if isinstance(model, torch.nn.Module):
            name = type(model).__name__
            file = export_module(model, example_inputs, Path(folder) / "module.pt2")
        elif example_inputs is not None:
            raise InvalidRequest("example_inputs are for torch modules; a file says what it takes")
        else:
            file, name = Path(model), Path(model).stem
            file.stat()  # raises here, not in a thread
        report = _report(on_progress)
        given = GivenFile(file, options, _sample_bytes(samples))
        try:
            compiled = _in_a_thread(lambda: compile_file(given, settings, report))
        finally:
            ForkServer.end_unless_used()
    return Network(name, compiled)


def _settings(device: str, store: Path) -> Settings:
    if device.partition(":")[0] != "cpu":
        raise InvalidRequest(f"device {device!r}: braid.compile computes on cpu devices only")
    return load_settings({"devices": device, "store": store})


def _sample_bytes(samples: Samples | None) -> bytes:
    """Return an .npz file of samples; empty for None."""
    if samples is None:
        return b""
    if isinstance(samples, Mapping):
        return samples_file(samples)
    if not isinstance(samples, bytes):
        with open_file(Path(samples)) as file:
            samples = file.read()
    if not samples:
        raise InvalidRequest("the file of samples is empty")
    return samples


def _report(on_progress: OnProgress | None) -> ReportProgress:
    def report(now: ProgressReport) -> None:
        if on_progress is not None:
            on_progress(now.progress, now.detail)

    return report


def _in_a_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``work`` in an event loop of its own, whatever loop the caller is in.

    An interrupt of the caller cancels it, and it ends its processes before this returns.
    """
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    outcome: Future[T] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="braid-compile", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()


def export_module(module: torch.nn.Module, example_inputs: Any, path: Path) -> Path:
    """Write a module as ``torch.export`` saves it, in evaluation mode; returns ``path``.

    Raises InvalidRequest: there are no example inputs, or torch cannot export the module with them.
    """
    inputs = _example_tensors(example_inputs)
    with _evaluating(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(_exported(module, inputs), path)
    return path


def _example_tensors(example_inputs: Any) -> tuple[Tensor, ...]:
    given = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    if not isinstance(given, tuple | list) or not given:
        raise InvalidRequest("give example_inputs for a torch module: a tensor or a tuple of them")
    if not all(isinstance(tensor, Tensor) for tensor in given):
        raise InvalidRequest("example_inputs of a torch module are tensors, nothing else")
    return tuple(given)


def _exported(module: torch.nn.Module, inputs: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Export with dimension 0 of all inputs as the batch; as the example is, if that fails."""
    if all(tensor.dim() for tensor in inputs) and len({tensor.shape[0] for tensor in inputs}) == 1:
        rows = tuple(torch.cat([tensor[:1]] * TRACED_ROWS) for tensor in inputs)
        batch = torch.export.Dim("batch")
        try:
            return torch.export.export(
                module, rows, dynamic_shapes=tuple({0: batch} for _ in inputs)
            )
        except Exception as error:  # torch has dozens of kinds
            reason: Exception = error
    try:
        return torch.export.export(module, tuple(inputs))
    except Exception as error:
        reason = error
    line = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
    raise InvalidRequest(f"torch cannot export this module: {line}") from reason


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module and all its parts into evaluation mode inside the context."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, was_training in before:
            part.training = was_training
