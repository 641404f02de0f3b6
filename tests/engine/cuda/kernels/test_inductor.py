"""Units through TorchInductor."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, Operator
from braid.engine.cuda.kernels.inductor import (
    Compiled,
    SharedCode,
    compiled_kernel,
    is_worth_compiling,
)
from braid.engine.ops.kinds import call
from tests.engine.cpu.test_kernels import convolution_attributes

CONVOLUTION = Operator(
    "c", "aten.convolution", ("x", "w", ""), ("y",),
    convolution_attributes(epilogue=[["aten.gelu"], ["aten.relu"]]),
)  # fmt: skip


def operands() -> list[Tensor | None]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, 6, 6), torch.randn(6, 4, 3, 3), None]


def test_units_that_are_one_kernel_anyway_are_not_worth_it() -> None:
    def unit(kind: str, **attributes: object) -> Operator:
        return Operator("u", kind, ("x",), ("y",), attributes)  # type: ignore[arg-type]

    assert is_worth_compiling(CONVOLUTION)
    assert is_worth_compiling(unit("braid.rms_norm"))
    assert is_worth_compiling(unit("braid.linear_add"))
    assert not is_worth_compiling(unit("aten.convolution", epilogue=[["aten.relu"]]))
    assert is_worth_compiling(unit("aten.add", epilogue=[["aten.relu"]]))
    assert not is_worth_compiling(unit("aten.add"))
    assert not is_worth_compiling(unit("braid.reshape"))
    assert not is_worth_compiling(unit("braid.onnxruntime"))


def test_it_is_compiled_once_for_one_memory_format() -> None:
    seen: list[list[Tensor | None]] = []

    def compile_(unit: Operator, given: Sequence[Tensor | None]) -> Compiled:
        seen.append(list(given))
        return lambda x, w: [torch.relu(torch.nn.functional.gelu(torch.conv2d(x, w, padding=1)))]

    kernel = compiled_kernel(CONVOLUTION, "nhwc", torch.channels_last, compile_)

    for _ in range(2):
        (got,) = kernel.function(*operands())
        torch.testing.assert_close(got, call(CONVOLUTION, operands())[0])
    assert len(seen) == 1
    assert kernel.variant == "inductor.nhwc"
    assert all(t is None or t.is_contiguous(memory_format=torch.channels_last) for t in seen[0])


def sum_of(*weights: float) -> Operator:
    attributes: dict[str, Literal] = {"weights": [*weights], "epilogue": [["aten.relu"]]}
    return Operator("s", "braid.weighted_sum", ("a", "b"), ("y",), attributes)


def test_sums_that_differ_in_weights_alone_share_what_is_compiled() -> None:
    compiled: list[Sequence[Tensor | None]] = []

    def compile_(_: Operator, given: Sequence[Tensor | None]) -> Compiled:
        compiled.append(given)
        return lambda a, b, weights: [torch.relu(a * weights[0] + b * weights[1])]

    shared, terms = SharedCode(), [torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)]
    for unit in (sum_of(0.25, -3.0), sum_of(7.0, 0.5)):
        kernel = compiled_kernel(unit, "nchw", torch.contiguous_format, compile_, shared)

        for _ in range(2):
            (got,) = kernel.function(*terms)
            torch.testing.assert_close(got, call(unit, terms)[0])
    assert len(compiled) == 1


@pytest.mark.slow  # a C++ compiler, for seconds
@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_inductor_compiles_units_on_the_cpu_too() -> None:
    norm = Operator("n", "braid.rms_norm", ("x", "w"), ("y",), {"axis": -1, "eps": 1e-6})
    cases: list[tuple[Operator, list[Tensor | None]]]
    cases = [(CONVOLUTION, operands()), (norm, [torch.randn(3, 5, 16), torch.randn(16)])]
    cases.append((sum_of(0.25, -3.0), [torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)]))
    with torch.inference_mode():
        for unit, given in cases:
            kernel = compiled_kernel(unit, "nhwc", torch.channels_last)

            (got,) = kernel.function(*given)

            torch.testing.assert_close(got, call(unit, given)[0], rtol=1e-4, atol=1e-5)
