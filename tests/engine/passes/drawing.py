"""Small graphs for tests of passes, and their numbers by the unfused interpreter in float64."""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from braid.core.graph import Branch, Literal, Operator, OpGraph
from braid.core.tensor import Dim, TensorType
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.kinds import OPS
from braid.engine.passes import run_passes
from braid.engine.passes.body import Pass, Weights
from braid.engine.passes.clean import drop_dead
from braid.engine.passes.specialise import interpret, specialise


class Drawing:
    """A graph under construction: every call adds an operator and returns the value it makes."""

    def __init__(self, **inputs: Sequence[Dim]) -> None:
        self.inputs = {name: TensorType("FP32", tuple(shape)) for name, shape in inputs.items()}
        self.weights: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self._random = torch.Generator().manual_seed(7)

    def constant(self, *shape: int, name: str = "", value: float | None = None) -> str:
        name = name or f"c{len(self.weights)}"
        drawn = torch.rand(shape, generator=self._random) + 0.5
        self.weights[name] = drawn if value is None else torch.full(shape, value)
        return name

    def op(self, kind: str, *inputs: str, **attributes: Literal) -> str:
        name = f"{kind.split('.')[1]}{len(self.operators)}"
        self.operators.append(Operator(name, kind, inputs, (f"{name}:0",), attributes))
        return f"{name}:0"

    def conv(self, x: str, channels: int, out: int, bias: bool = False, groups: int = 1) -> str:
        weight = self.constant(out, channels // groups, 3, 3)
        parameters = [weight, self.constant(out)] if bias else [weight]
        return self.op("aten.convolution", x, *parameters, **CONV, groups=groups)

    def norm(self, x: str, channels: int) -> str:
        parameters = [self.constant(channels) for _ in range(4)]
        return self.op("aten.batch_norm", x, *parameters, eps=1e-5)

    def cond(self, condition: str, then: Branch, otherwise: Branch) -> str:
        name = f"cond{len(self.operators)}"
        self.operators.append(
            Operator(
                name,
                "braid.cond",
                (),
                (f"{name}:0",),
                host={"condition": condition},
                branches=(then, otherwise),
            )
        )
        return f"{name}:0"

    def graph(self, *outputs: str, **named: str) -> tuple[OpGraph, dict[str, Tensor]]:
        """The template; outputs are called y0, y1, ..., unless they are named."""
        graph = OpGraph(
            name="drawn",
            inputs=self.inputs,
            outputs={f"y{i}": value for i, value in enumerate(outputs)} | named,
            constants={name: spec_of(tensor) for name, tensor in self.weights.items()},
            operators=tuple(self.operators),
        )
        graph.verify()
        return graph, self.weights

    def static(self, *outputs: str, **named: str) -> tuple[OpGraph, dict[str, Tensor]]:
        """The graph at the shapes of its inputs."""
        template, weights = self.graph(*outputs, **named)
        return specialise(template, weights, template.inputs)


def drawn(text: str, **inputs: Sequence[Dim]) -> tuple[Drawing, list[str]]:
    """A drawing in Python's notation, and its outputs, which stand behind the last semicolon.

    ``relu(x)`` is an operator, a number a constant of one element, ``const(4, 3)`` one of that
    shape; ``conv`` and ``norm`` take what the methods of ``Drawing`` do.
    """
    drawing, values = Drawing(**inputs), {name: name for name in inputs}

    def made(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return values[node.id]
        if not isinstance(node, ast.Call):
            literal = ast.literal_eval(node)
            return "" if literal == "" else drawing.constant(value=literal)
        kind = ast.unparse(node.func)
        more: dict[str, Any] = {
            str(each.arg): ast.literal_eval(each.value) for each in node.keywords
        }
        if kind == "const":
            return drawing.constant(*map(ast.literal_eval, node.args), **more)
        if kind in ("conv", "norm"):
            first, *numbers = node.args
            method: Callable[..., str] = getattr(drawing, kind)
            return method(made(first), *map(ast.literal_eval, numbers), **more)
        operands = [made(each) for each in node.args]
        return drawing.op(
            f"{'aten' if f'aten.{kind}' in OPS else 'braid'}.{kind}", *operands, **more
        )

    *lines, last = ast.parse(text).body
    for line in lines:
        assert isinstance(line, ast.Assign)
        values[ast.unparse(line.targets[0])] = made(line.value)
    assert isinstance(last, ast.Expr)
    outputs = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    return drawing, [made(each) for each in outputs]


CONV: Mapping[str, Literal] = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}


def kinds(graph: OpGraph) -> list[str]:
    return [op.kind.split(".")[1] for op in graph.operators]


def epilogue(op: Operator) -> list[str]:
    """Kinds of the fused steps."""
    steps = op.attributes.get("epilogue", [])
    assert isinstance(steps, list)
    return [str(step[0]).split(".")[1] for step in steps if isinstance(step, list)]


def numbers(graph: OpGraph, weights: Weights, seed: int = 0) -> dict[str, Tensor]:
    """Outputs for random inputs, symbols bound to 2, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        name: [2 if isinstance(dim, str) else dim for dim in spec.shape]
        for name, spec in graph.inputs.items()
    }
    specs = {name: TensorType("FP32", tuple(shape)) for name, shape in shapes.items()}
    static, constants = specialise(graph, weights, specs)
    wide = {n: t.double() if t.is_floating_point() else t for n, t in constants.items()}
    inputs = {name: torch.randn(shapes[name], generator=generator).double() for name in shapes}
    return interpret(static, wide, inputs)


def rewritten(
    drawing: Drawing, passes: Pass | Sequence[Pass], *outputs: str, tolerance: float = 1e-6
) -> OpGraph:
    """The template after passes, without what nothing reads; its numbers are those of before."""
    drawn = drawing.graph(*outputs)
    several = passes if isinstance(passes, Sequence) else [passes]
    after = run_passes(*drawn, [*several, drop_dead])
    assert_same_numbers(drawn, after, tolerance)
    return after[0]


def left(
    passes: Pass | Sequence[Pass], text: str, tolerance: float = 1e-6, **inputs: Sequence[Dim]
) -> list[str]:
    """Kinds that passes leave of a graph in Python's notation; its numbers stay."""
    drawing, outputs = drawn(text, **inputs)
    return kinds(rewritten(drawing, passes, *outputs, tolerance=tolerance))


def fused(
    fuse: Callable[[OpGraph, Weights], OpGraph], graph: OpGraph, constants: Weights
) -> OpGraph:
    """A static graph after a fusion, which changes no number."""
    after = fuse(graph, constants)
    after.verify()
    assert_same_numbers((graph, constants), (after, constants))
    return after


def assert_same_numbers(
    before: tuple[OpGraph, Weights], after: tuple[OpGraph, Weights], tolerance: float = 1e-6
) -> None:
    expected, got = numbers(*before), numbers(*after)
    assert list(expected) == list(got)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=tolerance, atol=tolerance)
