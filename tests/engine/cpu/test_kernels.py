"""Every kernel variant against the registry's, which follows torch."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.cpu.kernels.candidates import CPU_KERNELS
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import find_onednn
from braid.engine.ops.dtypes import arrays_of, spec_of
from braid.engine.ops.kinds import call
from braid.engine.passes.specialise import specialise
from braid.engine.program.kernel import Kernel, PackedWeights
from tests.engine.cpu.executors import on_tensors

THREADS = (1, 2)

EPILOGUES: list[list[Literal]] = [
    [],
    [["aten.relu"]],
    [["aten.clamp", "min", 0.0, "max", 6.0]],
    [["aten.silu"]],
    [["aten.hardswish"]],
    [["aten.sigmoid"]],
    [["aten.tanh"]],
    [["aten.gelu"]],
    [["aten.leaky_relu", "negative_slope", 0.1]],
    [["braid.hardsigmoid", "alpha", 0.2, "beta", 0.5]],
    [["braid.affine", "scale", 2.0, "shift", -1.0], ["aten.relu"]],
]

Attributes = Mapping[str, Literal]


def unit_graph(
    kind: str,
    inputs: Mapping[str, Tensor | None],
    constants: list[str],
    attributes: Attributes,
    results: Sequence[str] = ("y",),
) -> tuple[OpGraph, dict[str, Tensor]]:
    """A static graph of one unit whose operands are ``inputs``, in order; None is absent."""
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    specs = {name: spec_of(tensor) for name, tensor in given.items()}
    template = OpGraph(
        name="one",
        inputs={name: spec for name, spec in specs.items() if name not in constants},
        outputs={name: name for name in results},
        constants={name: spec for name, spec in specs.items() if name in constants},
        operators=(
            Operator(
                "unit",
                kind,
                tuple(name if tensor is not None else "" for name, tensor in inputs.items()),
                tuple(results),
                attributes,
            ),
        ),
    )
    weights = {name: given[name] for name in constants if name in given}
    return specialise(template, weights, template.inputs, {})


def all_kernels(graph: OpGraph, constants: Mapping[str, Tensor]) -> dict[str, Kernel]:
    (unit,) = graph.operators
    found = CPU_KERNELS.variants(unit, graph, arrays_of(constants), PackedWeights())
    return {kernel.variant: kernel for kernel in found}


def check(
    kind: str,
    inputs: Mapping[str, Tensor | None],
    constants: list[str],
    attributes: Attributes,
    expected: str = "onednn",
) -> None:
    """All variants agree with the registry on every memory layout and number of threads."""
    graph, weights = unit_graph(kind, inputs, constants, attributes)
    kernels = all_kernels(graph, weights)
    if find_onednn() is not None:
        assert expected in kernels
    (unit,) = graph.operators
    (wanted,) = call(unit, list(inputs.values()))
    for kernel in kernels.values():
        for threads in THREADS:
            torch.set_num_threads(threads)
            for layout in (torch.contiguous_format, torch.channels_last):
                operands = [
                    tensor.contiguous(memory_format=layout)
                    if tensor is not None and tensor.dim() == 4 and name not in constants
                    else tensor
                    for name, tensor in inputs.items()
                ]
                result = on_tensors(kernel, threads)(*operands)
                got = result if isinstance(result, Tensor) else result[0]
                assert got.shape == wanted.shape
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def convolution_attributes(**changed: Literal) -> dict[str, Literal]:
    usual: dict[str, Literal] = {
        "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False,
        "output_padding": [0, 0], "groups": 1,
    }  # fmt: skip
    return {**usual, **changed}


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_convolutions_with_each_fused_activation(epilogue: list[Literal]) -> None:
    inputs = {"x": torch.randn(2, 5, 9, 7), "w": torch.randn(6, 5, 3, 3), "b": torch.randn(6)}

    attributes = convolution_attributes(epilogue=epilogue) if epilogue else convolution_attributes()
    check("aten.convolution", inputs, ["w", "b"], attributes)


SUMS: list[tuple[str, tuple[int, ...], tuple[int, ...], list[str]]] = [
    ("aten.mul", (1, 6, 4, 8), (1, 6, 1, 8), []),
    ("aten.add", (2, 3, 4, 5), (2, 3, 4, 5), []),
    ("aten.mul", (2, 3, 4, 5), (), ["b"]),
    ("aten.sub", (), (2, 3, 5), ["a"]),
    ("aten.sub", (2, 1, 5), (2, 3, 1), []),
    ("aten.maximum", (2, 3, 4, 5), (3, 1, 5), []),
    ("aten.div", (3, 5), (2, 3, 1), []),
]


@pytest.mark.parametrize("sum_of", SUMS, ids=str)
@pytest.mark.parametrize("epilogue", [*EPILOGUES, [["aten.exp"], ["aten.tanh"]]], ids=str)
def test_sums_with_each_activation(
    sum_of: tuple[str, tuple[int, ...], tuple[int, ...], list[str]], epilogue: list[Literal]
) -> None:
    kind, left, right, constants = sum_of
    inputs = {"a": torch.rand(left) + 0.5, "b": torch.rand(right) + 0.5}
    attributes: Attributes = {"epilogue": epilogue} if epilogue else {}
    graph, weights = unit_graph(kind, inputs, constants, attributes)

    first = next(iter(all_kernels(graph, weights)))

    check(kind, inputs, constants, attributes, expected=first)
    assert first != "registry" or find_native() is None


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        *(("braid.pow", {"value": value}) for value in (2, 0.5, 3.0, -0.5, 1.7)),
        ("aten.elu", {"alpha": 0.7}),
        ("aten.rsqrt", {}),
        ("aten.reciprocal", {}),
    ],
)
def test_functions(kind: str, attributes: Attributes) -> None:
    x = torch.rand(3, 411) * 5 + 0.01
    check(kind, {"x": x}, [], attributes)
    if kind == "aten.elu":
        check(kind, {"x": x - 3}, [], {**attributes, "epilogue": [["aten.tanh"]]})


@pytest.mark.parametrize(
    ("weight", "changed"),
    [
        ((6, 4, 1, 1), {"padding": [0, 0]}),
        ((6, 4, 1, 1), {"padding": [0, 0], "stride": [2, 2]}),
        ((6, 4, 3, 3), {"stride": [2, 1]}),
        ((6, 4, 3, 3), {"dilation": [2, 2], "padding": [2, 2]}),
        ((6, 4, 1, 7), {"padding": [0, 3]}),
        ((4, 1, 3, 3), {"groups": 4}),
        ((8, 2, 3, 3), {"groups": 2}),
        ((6, 4, 5, 5), {"stride": [], "padding": [], "dilation": []}),
    ],
)
def test_convolutions_of_every_window(weight: tuple[int, ...], changed: Attributes) -> None:
    inputs = {"x": torch.randn(3, 4, 10, 11), "w": torch.randn(weight), "b": None}

    check("aten.convolution", inputs, ["w"], convolution_attributes(**changed))


@pytest.mark.parametrize(
    ("weight", "changed"),
    [
        ((4, 6, 3, 3), {}),
        ((16, 8, 3, 3), {}),
        ((4, 6, 3, 3), {"epilogue": [["aten.relu"]]}),
        ((4, 6, 4, 2), {"stride": [2, 3]}),
        ((4, 6, 3, 3), {"stride": [2, 2], "output_padding": [1, 1]}),
        ((4, 6, 3, 3), {"dilation": [2, 1]}),
        ((4, 3, 3, 3), {"groups": 2, "stride": [2, 1]}),
        ((4, 1, 1, 8), {"groups": 4, "padding": [0, 2], "stride": [1, 4]}),
        ((4, 6, 5, 5), {"stride": [], "padding": [], "dilation": [], "output_padding": []}),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolutions_of_every_window(
    weight: tuple[int, ...], changed: Attributes, bias: bool
) -> None:
    outputs = weight[1] * int(str(changed.get("groups", 1)))
    added = torch.randn(outputs) if bias else None
    inputs = {"x": torch.randn(3, weight[0], 10, 11), "w": torch.randn(weight), "b": added}

    attributes = convolution_attributes(transposed=True, **changed)

    check("aten.convolution", inputs, ["w", "b"] if bias else ["w"], attributes)


def test_a_transposed_convolution_whose_output_reaches_beyond_the_padding() -> None:
    inputs = {"x": torch.randn(1, 4, 5, 5), "w": torch.randn(4, 6, 3, 3)}
    changed: Attributes = {"stride": [2, 2], "padding": [0, 0], "output_padding": [1, 1]}

    attributes = convolution_attributes(transposed=True, **changed)

    check("aten.convolution", inputs, ["w"], attributes, expected="registry")


@pytest.mark.parametrize("epilogue", [[], [["aten.relu"]]], ids=str)
def test_a_residual_sum_is_fused_before_the_activation(epilogue: list[Literal]) -> None:
    inputs = {
        "x": torch.randn(2, 4, 6, 6), "w": torch.randn(16, 4, 3, 3),
        "b": torch.randn(16), "r": torch.randn(2, 16, 6, 6),
    }  # fmt: skip
    check("braid.convolution_add", inputs, ["w", "b"], convolution_attributes(epilogue=epilogue))
    rows: dict[str, Tensor | None] = {
        "x": torch.randn(2, 3, 8), "w": torch.randn(5, 8), "b": None, "r": torch.randn(2, 3, 5)
    }  # fmt: skip
    check("braid.linear_add", rows, ["w"], {"epilogue": epilogue})


@pytest.mark.parametrize("rows", [(1,), (7,), (2, 3)])
@pytest.mark.parametrize("epilogue", EPILOGUES[:8:7], ids=str)
def test_linear_layers(rows: tuple[int, ...], epilogue: list[Literal]) -> None:
    inputs = {"x": torch.randn(*rows, 12), "w": torch.randn(20, 12), "b": torch.randn(20)}

    check("aten.linear", inputs, ["w", "b"], {"epilogue": epilogue} if epilogue else {})


@pytest.mark.parametrize("kind", ["braid.max_pool", "braid.avg_pool"])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "pads"),
    [
        ([3, 3], [2, 2], [0, 0, 0, 0]),
        ([3, 3], [1, 1], [1, 1, 1, 1]),
        ([2, 3], [2, 2], [0, 1, 1, 1]),
        ([3, 3], [2, 2], "same_upper"),
        ([2, 2], [1, 1], "same_lower"),
    ],
)
def test_pooling(
    kind: str, ceil_mode: bool, kernel: Literal, stride: Literal, pads: Literal
) -> None:
    attributes: dict[str, Literal] = {
        "kernel": kernel, "stride": stride, "pads": pads, "dilation": [1, 1], "ceil_mode": ceil_mode
    }  # fmt: skip
    check(kind, {"x": torch.randn(2, 5, 10, 8)}, [], attributes)


@pytest.mark.parametrize("counted", [False, True])
def test_average_pooling_counts_the_padding_or_not(counted: bool) -> None:
    attributes: dict[str, Literal] = {
        "kernel": [3, 3], "stride": [2, 2], "pads": [1, 1, 1, 1], "dilation": [1, 1],
        "ceil_mode": True, "count_padding": counted,
    }  # fmt: skip
    reaches_over = "registry" if counted else "onednn"
    check("braid.avg_pool", {"x": torch.randn(1, 3, 8, 8)}, [], attributes, reaches_over)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("aten.mean", {"dims": [2, 3], "keepdim": False}),
        ("aten.mean", {"dims": [2, 3], "keepdim": True}),
        ("braid.global_avg_pool", {}),
    ],
)
def test_the_average_of_each_channel(kind: str, attributes: Attributes) -> None:
    check(kind, {"x": torch.randn(2, 5, 7, 6)}, [], attributes)


def test_concatenation_of_channels_also_of_views() -> None:
    channels = {"a": 3, "b": 4, "c": 1}
    inputs = {name: torch.randn(2, count, 5, 4) for name, count in channels.items()}

    check("aten.cat", inputs, [], {"dim": 1})
    graph, _ = unit_graph("aten.cat", inputs, [], {"dim": 1})
    wide = torch.randn(2, 16, 5, 4).contiguous(memory_format=torch.channels_last)
    views = [wide[:, 0:3], wide[:, 3:7], wide[:, 7:8]]
    for kernel in all_kernels(graph, {}).values():
        result = on_tensors(kernel, 1)(*views)
        assert isinstance(result, Tensor)
        assert torch.equal(result, wide[:, :8])


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("epilogue", [[], [["aten.relu"]]])
def test_a_weighted_sum_with_its_activation(count: int, epilogue: list[Literal]) -> None:
    terms = {f"x{index}": torch.randn(2, 5, 6, 7) for index in range(count)}
    weights: list[Literal] = [(-0.5) ** index * 3.0 for index in range(count)]

    check("braid.weighted_sum", terms, [], {"weights": weights, "epilogue": epilogue})


def test_what_is_not_fp32_runs_on_the_registry() -> None:
    x, w = torch.randn(1, 4, 5, 5), torch.randn(4, 4, 3, 3)
    graph, _ = unit_graph("aten.convolution", {"x": x, "w": w}, ["w"], convolution_attributes())
    wide = TensorType("FP64", (1, 4, 5, 5))
    graph = OpGraph(
        "wide", {"x": wide}, graph.outputs, {"w": TensorType("FP64", (4, 4, 3, 3))},
        graph.operators, {"y": wide},
    )  # fmt: skip

    assert list(all_kernels(graph, {"w": w.double()})) == ["registry"]


@pytest.mark.parametrize("epilogue", [[], [["aten.relu"]]], ids=str)
def test_batch_norm_with_stored_statistics(epilogue: list[Literal]) -> None:
    inputs = {"x": torch.randn(2, 22, 9, 7), "w": torch.randn(22), "b": torch.randn(22)}
    inputs |= {"mean": torch.randn(22), "var": torch.rand(22) + 0.1}

    attributes: Attributes = {"eps": 0.001, **({"epilogue": epilogue} if epilogue else {})}
    check("aten.batch_norm", inputs, ["w", "b", "mean", "var"], attributes)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [2**63 - 1], [2], [1]),
        ([1, -4], [-1, 100], [2, 3], [1, 1]),
        ([1, 1], [2, 9], [0, -1], [1, 2]),
        ([3], [8], [1], [2]),
    ],
)
def test_slices_of_images(
    starts: list[Literal], ends: list[Literal], axes: list[Literal], steps: list[Literal]
) -> None:
    attributes: Attributes = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}

    check("braid.slice", {"x": torch.randn(2, 10, 9, 7)}, [], attributes)


def test_a_slice_whose_last_step_ends_beyond_a_row_is_not_onednns() -> None:
    attributes: Attributes = {"starts": [0], "ends": [7], "axes": [3], "steps": [2]}

    check("braid.slice", {"x": torch.randn(2, 10, 9, 7)}, [], attributes, expected="registry")


@pytest.mark.parametrize(
    ("shape", "changed"),
    [
        ((2, 4, 5, 6), {"pads": [0, 0, 1, 0, 0, 0, 1, 2]}),
        ((2, 4, 5, 6), {"pads": [2, 0], "axes": [3]}),
        ((2, 4, 5, 6), {"pads": [1, 0, 0, 3], "axes": [-1, 1], "value": -torch.inf}),
        ((3, 7), {"pads": [0, 4, 0, 0], "value": 0.5}),
        ((1, 3, 9), {"pads": [2, 2], "axes": [-1], "value": None}),
    ],
)
def test_numbers_around_a_value(shape: tuple[int, ...], changed: Attributes) -> None:
    check("braid.pad", {"x": torch.randn(shape)}, [], {"mode": "constant", **changed})


def test_paddings_that_crop_run_on_the_registry() -> None:
    attributes: Attributes = {"axes": [2], "pads": [1, -1], "mode": "constant"}
    graph, weights = unit_graph("braid.pad", {"x": torch.randn(1, 4, 9)}, [], attributes)

    assert set(all_kernels(graph, weights)) == {"registry"}
