"""Small random networks of images: what is drawn is a list of steps, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from campaigns.exact.steps import Array, Step, Window

_IN_FLOATS = ("", "Relu", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh")


@dataclass(slots=True)
class Drawn:
    """A network from ``x``; its last step makes the answer."""

    shape: tuple[int, ...]  # of a row of ``x``
    steps: list[Step] = field(default_factory=list)
    all_are_outputs: bool = False  # every step's result is, too; else only the last one's

    def shown(self) -> list[str]:
        """Results that a server answers with, those left out that a sum may take in."""
        if not self.all_are_outputs:
            return [self.steps[-1].output]
        return [step.output for step in self.steps if not step.feeds_sum]

    def may_be_taken_in(self, step: Step) -> bool:
        """Whether a step may run in one unit with the sum or the function behind it."""
        if step.feeds_sum:
            return True
        readers = [reader.kind for reader in self.steps if step.output in reader.inputs]
        return readers == ["function"] and not self.all_are_outputs


class _Drawing:
    def __init__(self, random: np.random.Generator, activations: Sequence[str]) -> None:
        self._random = random
        self._activations = activations
        size = int(random.integers(6, 14))
        self.drawn = Drawn((int(random.integers(1, 9)), size, int(random.integers(6, 14))))
        self._shapes = {"x": self.drawn.shape}
        self._latest = "x"

    def pick(self, *choices: int) -> int:
        return int(self._random.choice(choices))

    def _activation(self) -> str:
        return str(self._random.choice(self._activations))

    def add(self, step: Step) -> str:
        self.drawn.steps.append(step)
        self._shapes[step.output] = step.shape
        self._latest = step.output
        return step.output

    def _name(self) -> str:
        return f"v{len(self.drawn.steps)}"

    def conv(self, x: str, *, out: int = 0, keeps: bool = False, feeds_sum: bool = False) -> str:
        """A convolution of random shape; ``keeps``: the extents stay."""
        channels, *extents = self._shapes[x]
        kernel = self.pick(1, 1, 3, 3, 5), self.pick(1, 3, 3)
        dilation = 1 if max(kernel) > 3 else self.pick(1, 1, 1, 2)
        whole = dilation * (kernel[0] - 1) // 2, dilation * (kernel[1] - 1) // 2
        padding, stride = whole, 1
        if not keeps:
            stride = self.pick(1, 1, 2)
            padding = self.pick(0, whole[0]), self.pick(0, whole[1])
        groups = channels if self.pick(0, 0, 1) else 1
        out = out or groups * self.pick(1, 2) if groups > 1 else out or self.pick(3, 8, 16, 20)
        if out % groups:
            groups = 1
        window = Window(kernel, stride, padding, dilation, groups)
        if min(window.result(extents)) < 1:
            window = Window((1, 1))
            kernel, groups = (1, 1), 1
        shape = (out, *window.result(extents))
        weight = self._weights(out, channels // window.groups, *kernel)
        bias = self._weights(out) if self.pick(0, 1, 1) else None
        step = Step("conv", (x,), self._name(), shape, window, weight, bias, feeds_sum=feeds_sum)
        return self.add(step if feeds_sum else replace(step, activation=self._activation()))

    def _weights(self, *shape: int) -> Array:
        size = (2 / math.prod(shape[1:])) ** 0.5
        weights: Array = (self._random.standard_normal(shape) * size).astype(np.float32)
        return weights

    def residual(self, x: str) -> None:
        """A convolution of ``x``, plus ``x``."""
        branch = self.conv(x, out=self._shapes[x][0], keeps=True, feeds_sum=True)
        activation = str(self._random.choice(["", "Relu"]))
        self.add(Step("add", (branch, x), self._name(), self._shapes[x], activation=activation))

    def branches(self, x: str) -> None:
        """Two or three branches that are concatenated."""
        ends = [self.conv(x, keeps=True) for _ in range(self.pick(2, 2, 3))]
        if self.pick(0, 1):
            ends[-1] = self.pool(ends[-1], keeps=True)
        channels = sum(self._shapes[name][0] for name in ends)
        shape = (channels, *self._shapes[x][1:])
        self.add(Step("concat", tuple(ends), self._name(), shape))

    def pool(self, x: str, *, keeps: bool = False) -> str:
        """Largest or average of windows."""
        channels, *extents = self._shapes[x]
        size = 3 if keeps else self.pick(2, 3)
        pad = size // 2 if keeps else self.pick(0, size // 2)
        counts = bool(self.pick(0, 1))
        window = Window((size, size), 1 if keeps else 2, (pad, pad), counts_padding=counts)
        kind = str(self._random.choice(["max_pool", "max_pool", "avg_pool"]))
        return self.add(Step(kind, (x,), self._name(), (channels, *window.result(extents)), window))

    def function(self, x: str) -> str:
        """A function of each number by itself."""
        name = str(self._random.choice(["LeakyRelu", "Sigmoid"]))
        shape = self._shapes[x]
        return self.add(Step("function", (x,), self._name(), shape, activation=name))

    def head(self) -> None:
        """Average of whole images, then a linear layer."""
        channels = self._shapes[self._latest][0]
        mean = self.add(Step("mean", (self._latest,), self._name(), (channels, 1, 1)))
        out = self.pick(1, 5, 10)
        weights = self._weights(out, channels), self._weights(out)
        self.add(Step("linear", (mean,), self._name(), (out,), Window((1, 1)), *weights))

    def block(self) -> None:
        """Add one of the above behind the latest step."""
        x = self._latest
        small = min(self._shapes[x][1:]) < 4
        makers: list[Callable[[str], object]] = [
            self.conv,
            self.conv,
            self.residual,
            self.branches,
            self.branches,
            self.function,
        ]
        if not small:
            makers.append(self.pool)
        makers[int(self._random.integers(len(makers)))](x)


def draw(seed: int, *, activations: Sequence[str] = _IN_FLOATS) -> Drawn:
    """A network of three to six blocks; every other one answers with each step's result."""
    random = np.random.default_rng(seed)
    drawing = _Drawing(random, activations)
    drawing.conv("x")
    for _ in range(drawing.pick(2, 3, 4, 5)):
        drawing.block()
    if drawing.pick(0, 1):
        drawing.head()
    drawing.drawn.all_are_outputs = seed % 2 == 0
    return drawing.drawn


def rows(drawn: Drawn, count: int, seed: int) -> Array:
    """Random rows: usual ones, huge and tiny ones, zeros, and single numbers far outside."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, *drawn.shape)).astype(np.float32)
    kind = random.integers(0, 10, count)
    x[kind == 0] *= 1000
    x[kind == 1] *= 1e-3
    x[kind == 2] *= 1e-42  # denormal
    x[kind == 3] = 0
    for row in np.flatnonzero(kind == 4):
        x[row].flat[random.integers(x[row].size)] = random.choice([1e6, -1e6])
    return x


def spoiled(x: Array, seed: int) -> Array:
    """The rows with one NaN or infinity in each."""
    random, rows = np.random.default_rng(seed), x.copy()
    for row in rows:
        row.flat[random.integers(row.size)] = random.choice([np.nan, np.inf, -np.inf])
    return rows
