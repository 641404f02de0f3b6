"""Each CUDA kernel of a unit gives the registry's numbers; here with its fused operators apart."""

from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, OpGraph
from braid.engine.cuda.kernels.candidates import CudaKernels, offered_precisions, pin_fp32
from braid.engine.cuda.kernels.library_units import Window
from braid.engine.ops.kinds import call
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import Kernel, PackedWeights, kernel_signature
from braid.engine.program.program import Binding, bind
from tests.engine.cpu.test_kernels import convolution_attributes, unit_graph
from tests.engine.cuda.kernels.fakes import DecomposedOps
from tests.engine.program.test_merge import Units

CPU = torch.device("cpu")
RELU: Literal = [["aten.relu"]]
GELU: Literal = [["aten.gelu", "approximate", "tanh"]]


@pytest.fixture(autouse=True)
def switches_as_they_were() -> Iterator[None]:
    benchmark = torch.backends.cudnn.benchmark
    yield
    pin_fp32()
    torch.backends.cudnn.benchmark = benchmark


def kernels(
    graph: OpGraph, constants: Mapping[str, Tensor], ops: DecomposedOps, precision: str = "fp32"
) -> dict[str, Kernel]:
    """By name, in the order they would be tried."""
    source = CudaKernels(CPU, precision, ops=ops, compile_=None)
    packed = PackedWeights()
    placed = source.place(graph, constants, packed)
    found = source.variants(graph.operators[0], graph, placed, packed)
    assert len({kernel.variant for kernel in found}) == len(found)
    return {kernel.variant: kernel for kernel in found}


def check(
    kind: str,
    inputs: Mapping[str, Tensor | None],
    attributes: Mapping[str, Literal],
    expected: set[str],
    called: set[str],
) -> dict[str, Kernel]:
    """All kernels agree with the registry, whatever memory layout their operands come in."""
    constants = [name for name in ("w", "b") if inputs.get(name) is not None]
    graph, weights = unit_graph(kind, inputs, constants, attributes)
    ops = DecomposedOps()
    found = kernels(graph, weights, ops)
    (wanted,) = call(graph.operators[0], list(inputs.values()))
    for kernel in found.values():
        for layout in (torch.contiguous_format, torch.channels_last):
            operands = [
                tensor.contiguous(memory_format=layout)
                if tensor is not None and tensor.dim() == 4 and name not in constants
                else tensor
                for name, tensor in inputs.items()
            ]
            copies = [None if operand is None else operand.clone() for operand in operands]
            got = kernel.function(*operands)
            got = got if isinstance(got, Tensor) else got[0]
            assert got.shape == wanted.shape
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            for operand, copy in zip(operands, copies, strict=True):
                if operand is not None and copy is not None:
                    assert torch.equal(operand, copy), "an operand was written to"
    assert set(found) == expected | {"registry"}
    assert set(ops.called) == called
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("summand", [True, False])
def test_a_convolution_before_relu_is_one_fused_kernel(bias: bool, summand: bool) -> None:
    inputs = {
        "x": torch.randn(2, 5, 9, 7), "w": torch.randn(6, 5, 3, 3),
        "b": torch.randn(6) if bias else None,
    }  # fmt: skip
    fused = "convolution_add_relu" if summand else "convolution_relu"
    kind = "braid.convolution_add" if summand else "aten.convolution"
    if summand:
        inputs["r"] = torch.randn(2, 6, 9, 7)

    found = check(
        kind, inputs, convolution_attributes(epilogue=RELU),
        {"conv-relu.nchw", "conv.nchw", "conv-relu.nhwc", "conv.nhwc"}, {fused},
    )  # fmt: skip

    assert found["conv-relu.nchw"].needs_finite  # cuDNN's ReLU may turn NaN into 0
    assert not found["conv.nchw"].needs_finite


def test_other_activations_follow_the_convolution() -> None:
    inputs = {"x": torch.randn(2, 4, 6, 6), "w": torch.randn(6, 4, 3, 3), "b": torch.randn(6)}
    steps: Literal = [["aten.silu"], ["aten.relu"]]

    check(
        "aten.convolution", inputs, convolution_attributes(epilogue=steps),
        {"conv.nchw", "conv.nhwc"}, set(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("epilogue", "called"),
    [([], set()), (RELU, {"linear_activation"}), (GELU, {"linear_activation"})],
)
def test_pointwise_convolutions_are_also_matrix_products(
    epilogue: Literal, called: set[str]
) -> None:
    inputs = {"x": torch.randn(2, 5, 4, 3), "w": torch.randn(6, 5, 1, 1), "b": torch.randn(6)}
    relu = {"conv-relu.nchw", "conv-relu.nhwc"} if epilogue == RELU else set()
    fused = {"convolution_relu"} if epilogue == RELU else set()

    found = check(
        "aten.convolution", inputs, convolution_attributes(padding=[0, 0], epilogue=epilogue),
        {"gemm.nhwc", "conv.nchw", "conv.nhwc", *relu}, called | fused,
    )  # fmt: skip

    result = found["gemm.nhwc"].function(*inputs.values())
    assert isinstance(result, Tensor)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_strided_or_padded_pointwise_convolutions_are_not() -> None:
    inputs = {"x": torch.randn(2, 5, 6, 6), "w": torch.randn(6, 5, 1, 1), "b": None}

    for window in ({"stride": [2, 2], "padding": [0, 0]}, {"padding": [1, 1]}):
        attributes = convolution_attributes(**window)
        check("aten.convolution", inputs, attributes, {"conv.nchw", "conv.nhwc"}, set())


@pytest.mark.parametrize("epilogue", [[], RELU])
def test_depthwise_convolutions_are_left_to_torch(epilogue: Literal) -> None:
    inputs = {"x": torch.randn(2, 4, 8, 8), "w": torch.randn(8, 1, 3, 3), "b": torch.randn(8)}
    names = {"depthwise.nchw", "conv.nchw", "conv.nhwc"}

    attributes = convolution_attributes(groups=4, epilogue=epilogue)
    check("aten.convolution", inputs, attributes, names, {"depthwise"})


def test_grouped_convolutions_that_are_not_depthwise() -> None:
    inputs = {"x": torch.randn(2, 4, 8, 8), "w": torch.randn(8, 2, 3, 3), "b": torch.randn(8)}

    names = {"conv.nchw", "conv.nhwc"}
    check("aten.convolution", inputs, convolution_attributes(groups=2), names, set())


@pytest.mark.parametrize("rows", [(), (7,), (2, 3)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("epilogue", "fused"), [([], False), (RELU, True), (GELU, True)])
def test_linear_layers(rows: tuple[int, ...], bias: bool, epilogue: Literal, fused: bool) -> None:
    inputs = {
        "x": torch.randn(*rows, 12), "w": torch.randn(20, 12),
        "b": torch.randn(20) if bias else None,
    }  # fmt: skip
    called = {"linear_activation"} if fused else set()

    check("aten.linear", inputs, {"epilogue": epilogue}, {"gemm-act"}, called)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_with_a_residual_sum(bias: bool) -> None:
    inputs = {
        "x": torch.randn(2, 3, 8), "w": torch.randn(5, 8),
        "b": torch.randn(5) if bias else None, "r": torch.randn(2, 3, 5),
    }  # fmt: skip

    check("braid.linear_add", inputs, {"epilogue": RELU}, {"gemm-sum"}, set())


def test_images_go_as_tensor_cores_want_them_where_those_are_used() -> None:
    inputs = {"x": torch.randn(1, 4, 6, 6), "w": torch.randn(6, 4, 3, 3)}
    graph, weights = unit_graph("aten.convolution", inputs, ["w"], convolution_attributes())

    assert next(iter(kernels(graph, weights, DecomposedOps()))) == "conv.nchw"
    assert next(iter(kernels(graph, weights, DecomposedOps(), "tf32"))) == "conv.nhwc"


def test_tf32_is_on_inside_the_kernels_of_such_a_program_only() -> None:
    seen: list[tuple[bool, bool]] = []

    class Watching(DecomposedOps):
        def linear_activation(
            self, rows: Tensor, weight: Tensor, bias: Tensor, gelu: bool
        ) -> Tensor:
            switches = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            seen.append(switches)
            return super().linear_activation(rows, weight, bias, gelu)

    inputs = {"x": torch.randn(3, 4), "w": torch.randn(5, 4)}
    graph, weights = unit_graph("aten.linear", inputs, ["w"], {"epilogue": RELU})
    for precision in ("tf32", "fp32"):
        kernels(graph, weights, Watching(), precision)["gemm-act"].function(*inputs.values())

    assert seen == [(True, True), (False, False)]
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_choices_of_tf32_and_fp32_are_kept_apart() -> None:
    inputs = {"x": torch.randn(3, 4), "w": torch.randn(5, 4)}
    graph, _ = unit_graph("aten.linear", inputs, ["w"], {})
    plain, wide = (CudaKernels(CPU, precision) for precision in ("fp32", "tf32"))

    assert plain.signature(graph.operators[0], graph) == kernel_signature(graph.operators[0], graph)
    assert wide.signature(graph.operators[0], graph) != plain.signature(graph.operators[0], graph)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("images", [True, False])
def test_merged_units_on_cuda_kernels(layout: str, images: bool) -> None:
    if images:
        drawing = (
            Units(torch.randn(2, 5, 9, 8)).beside(4, (1, 1)).beside(6, (3, 3)).beside(2, (1, 7))
        )
    else:
        drawing = Units(torch.randn(2, 3, 16)).linear(8).linear(8).linear(4)
    graph, constants = drawing.joined
    source = CudaKernels(CPU, layout=layout, ops=DecomposedOps(), compile_=None)
    program = bind(graph, constants, Binding(source, 1, PackedWeights()))

    parts = program.unit((0, 1, 2)).kernel.function(drawing.x)

    wanted = interpret(graph, constants, {"x": drawing.x})
    assert len(parts) == 3
    torch.testing.assert_close(parts[0], wanted["y0"], rtol=1e-4, atol=1e-5)
    if images:
        got = torch.cat(list(parts), 1)
        torch.testing.assert_close(got, wanted["cat"], rtol=1e-4, atol=1e-5)
        format_ = torch.contiguous_format if layout == "nchw" else torch.channels_last
        assert all(part.is_contiguous(memory_format=format_) for part in parts)


def test_a_weight_is_laid_out_once_for_all_plans_of_a_model() -> None:
    inputs = {"x": torch.randn(1, 4, 6, 6), "w": torch.randn(6, 4, 3, 3)}
    graph, weights = unit_graph("aten.convolution", inputs, ["w"], convolution_attributes())
    source, packed = CudaKernels(CPU, ops=DecomposedOps()), PackedWeights()
    first = source.place(graph, weights, packed)["w"]

    made = [packed.derived(("layout", "w", "nhwc"), first, lambda: first.clone()) for _ in "ab"]

    assert made[0] is made[1]
    assert source.place(graph, weights, packed)["w"] is first
    changed = {"w": weights["w"] + 1}  # the same name, another tensor: a constant of other shapes
    assert torch.equal(source.place(graph, changed, packed)["w"], changed["w"])


def test_precisions_by_compute_capability() -> None:
    assert offered_precisions((9, 0)) == ("fp32", "tf32", "fp16", "bf16")
    assert offered_precisions((7, 5)) == ("fp32", "fp16")


def test_a_fused_kernel_that_reads_unwritten_memory_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Careless(DecomposedOps):
        """The second result has the memory of the first."""

        memory: Tensor | None = None

        def convolution_relu(
            self, x: Tensor, weight: Tensor, bias: Tensor, window: Window
        ) -> Tensor:
            y = super().convolution_relu(x, weight, bias, window)
            if self.memory is not None:
                y += 0 * self.memory
            self.memory = y
            return y

    inputs = {"x": torch.randn(2, 4, 6, 6), "w": torch.randn(6, 4, 3, 3)}
    graph, weights = unit_graph(
        "aten.convolution", inputs, ["w"], convolution_attributes(epilogue=RELU)
    )
    kernel = kernels(graph, weights, Careless())["conv-relu.nchw"]

    for _ in range(2):
        (got,) = kernel.function(*inputs.values(), None)
        torch.testing.assert_close(got, call(graph.operators[0], [*inputs.values(), None])[0])
    assert "depends on what its memory held" in caplog.text
