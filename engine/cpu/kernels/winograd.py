"""Convolutions of 3 x 3, stride 1, in FP32 by Winograd's minimal filtering F(4x4, 3x3).

    bind_winograd(unit, binding) ──> Kernel, or None where the method or the CPU does not fit

36 products take the place of 144 (Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", 2016). Weights take four times as much memory, and errors are three to five times those
of the definition where the pixels of a tile are alike. An infinity or NaN spreads to the 4 x 4
outputs of a tile, and a pixel that is far larger than those around it takes digits from them.
engine/cpu/native/winograd.h computes it.
"""

import ctypes
import math

import numpy as np

from braid.core.attributes import image_window
from braid.core.graph import Operator
from braid.engine.cpu.kernels.epilogues import post_ops
from braid.engine.cpu.kernels.onednn_units import with_residual
from braid.engine.cpu.kernels.unit_binding import UnitBinding, constants_of, single
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import WEIGHTS, NativeCall, OneDnn, PostOp
from braid.engine.onednn.recipe import Recipe
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import Array

VARIANT = "winograd"

TILE, PATCH, PANEL = 4, 6, 32
"""As in vectors.c: pixels of a tile's side and of what it reads; outputs of a panel of weights."""

BLOCK, FEW = 24, 12  # most tiles of a block, and how many are few

_KINDS = frozenset({"aten.convolution", "braid.convolution_add"})

_RELU: PostOp = ("relu", 0.0, 0.0)

_WEIGHTS_TRANSFORM = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
"""G of the paper, for the points 0, 1, -1, 2, -2 and infinity."""


class _Convolution(ctypes.Structure):
    """``struct winograd`` of vectors.c."""

    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "in_", "out")),
        *((name, ctypes.c_int64) for name in ("out_height", "out_width", "top", "left")),
        *((name, ctypes.c_int64) for name in ("blocks", "shares", "threads", "relu", "scratch")),
    )


class Winograd(NativeCall):
    """One convolution on images of fixed shapes, for one number of threads."""

    def __init__(
        self,
        library: OneDnn,
        native: ctypes.CDLL,
        source: tuple[int, ...],
        output: tuple[int, ...],
        padding: tuple[int, int],
        threads: int,
        relu: bool,
    ) -> None:
        """Fill in what winograd.h reads; ``source`` and ``output`` are [n, c, h, w]."""
        n, c, h, w = source
        _, out, out_height, out_width = output
        tiles = n * math.ceil(out_height / TILE) * math.ceil(out_width / TILE)
        blocks, shares = cut(tiles, math.ceil(out / PANEL), threads)
        of_thread = math.ceil(tiles / blocks) * PATCH * PATCH * (c + out)
        self.scratch_elements = threads * of_thread
        convolution = _Convolution(
            *(None, n, h, w, c, out, out_height, out_width, *padding),
            *(blocks, shares, threads, relu, of_thread),
        )
        super().__init__(library, native.braid_winograd, convolution)


def cut(tiles: int, panels: int, threads: int) -> tuple[int, int]:
    """Into how many blocks tiles are cut, and each block's panels of outputs into how many shares.

    Each thread has as much to do as the others. Where blocks for all would be of few tiles, for
    which weights are hardly read again, threads share the outputs of larger ones.
    """
    shares = 1
    while threads % (2 * shares) == 0 and 2 * shares <= panels and tiles < threads // shares * FEW:
        shares *= 2
    of_threads = threads // shares
    return min(tiles, math.ceil(tiles / BLOCK / of_threads) * of_threads), shares


def transformed(weight: Array) -> Array:
    """Weights [out, in, 3, 3] as winograd.h reads them: [36, panels of 32 outputs, in, 32]."""
    out, inputs = weight.shape[:2]
    g, panels = np.array(_WEIGHTS_TRANSFORM), math.ceil(out / PANEL)
    rows = np.einsum("ia,ocab->iboc", g, weight.astype(np.float64))
    points = np.zeros((PATCH, PATCH, inputs, panels * PANEL), np.float32)
    points[..., :out] = np.einsum("jb,iboc->ijco", g, rows)
    return points.reshape(PATCH * PATCH, inputs, panels, PANEL).transpose(0, 2, 1, 3)


def bind_winograd(unit: Operator, binding: UnitBinding) -> Kernel | None:
    """Kernel for a unit that oneDNN can compute directly; None where the method does not fit."""
    native, steps = find_native(), post_ops(unit)
    operands = constants_of(unit, binding) if unit.kind in _KINDS else None
    if native is None or not native.braid_has_winograd() or operands is None:
        return None
    weight, bias = operands
    stride, padding, dilation, groups = image_window(unit)
    fits = (
        binding.library.dtype == "FP32"
        and weight.dtype == np.float32
        and weight.shape[2:] == (3, 3)
        and {*stride, *dilation, groups} == {1}
        and not unit.attributes.get("transposed")
        and weight.shape[0] % 16 == 0
        and weight.shape[1] % 8 == 0
        and steps in ([], [_RELU])
        and all(array.dtype == np.float32 for array in bias.values())
    )
    if not fits:
        return None
    source, output = binding.shape(unit.inputs[0]), binding.shape(unit.outputs[0])
    _, arguments = with_residual(unit, [])
    top, left = padding

    def make(threads: int) -> Recipe:
        computation = Winograd(
            binding.library, native, source, output, (top, left), threads, bool(steps)
        )
        packed = binding.packed.once((VARIANT, unit.inputs[1]), lambda: transformed(weight))
        return single(
            *(computation, {WEIGHTS: packed, **bias}, arguments),
            *(binding.buffer(output, images=True), computation.scratch_elements),
        )

    return Kernel(VARIANT, recipe=make, needs_finite=True)
