"""What a user of a GPU would run instead: torch eager, one CUDA graph, torch.compile.

The same rules for all: seeded weights, the precision that Braid has, cudnn.benchmark on, three
warm-ups, and images in contiguous and in channels_last memory: the faster one counts.
Within torch.compile, Inductor may change layouts again. Device time is that of kernels that read
inputs in place, as Braid's graphs do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cuda.agenda import EAGER, GRAPH, MAX_AUTOTUNE, REDUCE_OVERHEAD
from benchmarks.cuda.clock import delay_us, hold_up, largest_error, quick_ms
from benchmarks.networks.network import Network
from braid.core.precision import HALF, TF32
from braid.engine.cuda.kernels.candidates import pin_fp32
from braid.engine.ops.dtypes import torch_dtype

WARM_UPS = 3
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Call = Callable[[], Tensor | Sequence[Tensor]]
Make = Callable[[nn.Module, Sequence[Tensor]], Call]

cuda: Any = torch.cuda  # typed in some builds only


def eager(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    def call() -> Tensor:
        result: Tensor = model(*inputs)
        return result

    return call


def graph(model: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Call:
    """The module captured into one CUDA graph: its kernels one after the other."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UPS):
            model(*inputs)
    cuda.current_stream().wait_stream(side)
    captured = cuda.CUDAGraph()
    with cuda.graph(captured, capture_error_mode="thread_local"):  # compilers have threads
        outputs = model(*inputs)

    def replay() -> Tensor:
        captured.replay()
        return outputs

    return replay


def frozen(model: nn.Module, mode: str) -> Callable[..., Tensor]:
    """torch.compile in a mode, the weights frozen into the code."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    return torch.compile(model, mode=mode, dynamic=False)


def compiled(mode: str) -> Make:
    """What torch.compile makes in a mode without CUDA graphs, captured into one that we replay.

    A mode's own CUDA graphs copy every input into memory of theirs at each call, which would count
    as device time. ``mark_static_address`` is no way out: where weights are frozen, a marked input
    becomes a constant, and the whole network is folded into its result.
    """
    return lambda model, inputs: graph(frozen(model, mode), inputs)


PEERS: Mapping[str, Make] = {
    EAGER: eager,
    GRAPH: graph,
    REDUCE_OVERHEAD: compiled("default"),
    MAX_AUTOTUNE: compiled("max-autotune-no-cudagraphs"),
}


@dataclass(slots=True)
class Peer:
    """A module on the GPU, warm."""

    call: Call
    inputs: Sequence[Tensor]  # on the device, read in place
    staged: Sequence[Tensor]  # the same, in page-locked host memory
    layout: str
    results: Sequence[Tensor] = field(default_factory=list)  # page-locked, for outputs
    delay_us: float = 0.0

    def warm_up(self) -> Sequence[Tensor]:
        """The first runs; the outputs of the last one, on the host."""
        for _ in range(WARM_UPS):
            outputs = _as_list(self.call())
        cuda.synchronize()
        self.results = [
            torch.empty_like(output, device="cpu", pin_memory=True) for output in outputs
        ]
        self.delay_us = delay_us(self.call, cuda.synchronize)
        self.total_ms()
        return [result.clone() for result in self.results]

    def gpu_ms(self) -> float:
        """Between two events on the current stream."""
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        hold_up(self.delay_us)
        self.call()
        start.record()
        self.call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def total_ms(self) -> float:
        """Copies over page-locked memory, as Braid's."""
        began = perf_counter_ns()
        for target, source in zip(self.inputs, self.staged, strict=True):
            target.copy_(source, non_blocking=True)
        for result, output in zip(self.results, _as_list(self.call()), strict=True):
            result.copy_(output, non_blocking=True)
        cuda.synchronize()
        return (perf_counter_ns() - began) / 1e6


def fastest(
    network: Network, name: str, batch: int, precision: str, patience_s: float
) -> tuple[Peer, Mapping[str, object]]:
    """The peer in the memory layout that suits it; and what was seen on the way.

    Another layout is tried only if less than half of ``patience_s`` has gone. No gradients.
    """
    began = monotonic()
    pin_fp32()
    inputs = network.example_inputs(batch)
    wanted = _as_list(network.build().cuda()(*(tensor.cuda() for tensor in inputs)))
    wanted = [tensor.cpu() for tensor in wanted]
    if precision == TF32:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    dtype = torch_dtype(HALF.get(precision, "FP32"))
    inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
    images = any(tensor.dim() == 4 for tensor in inputs)
    by_layout: dict[str, tuple[float, float, Peer]] = {}
    for layout in LAYOUTS if images else ["contiguous"]:
        if by_layout and monotonic() - began > patience_s / 2:
            break
        peer = _peer(network.build().to(dtype), inputs, name, layout)
        error = largest_error(peer.warm_up(), wanted)
        by_layout[layout] = quick_ms(peer), error, peer
    _, error, peer = min(by_layout.values(), key=lambda one: one[0])
    notes = {
        "layout": peer.layout,
        "layouts_gpu_ms": {layout: ms for layout, (ms, _, _) in by_layout.items()},
        "max_rel_error": error,
        "ready_s": monotonic() - began,
    }
    return peer, notes


def _peer(model: Any, inputs: Sequence[Tensor], name: str, layout: str) -> Peer:
    model = model.cuda().to(memory_format=LAYOUTS[layout])
    staged = [_laid_out(tensor, layout).pin_memory() for tensor in inputs]
    placed = [tensor.cuda() for tensor in staged]
    return Peer(PEERS[name](model, placed), placed, staged, layout)


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    return tensor.contiguous(memory_format=LAYOUTS[layout]) if tensor.dim() == 4 else tensor


def _as_list(outputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)
