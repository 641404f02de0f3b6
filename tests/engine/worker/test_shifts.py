"""Corrections of biases: means of what rounding adds, against NumPy; kept as text."""

import numpy as np
import pytest
import torch
from torch import Tensor

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph
from braid.core.quantisation import Quantisation, Shift
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes.quantised.calibrated import corrected_bias, quantised_by, shift_of
from braid.engine.passes.quantised.candidates import Candidates
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from braid.engine.worker.measuring.sensitivity import mean_shifts
from tests.engine.cpu.test_kernels import unit_graph

WIDTH, RANGE = 48, (0.0, 1.0)


def layer(*, bias: bool) -> tuple[OpGraph, dict[str, Tensor]]:
    """y = relu(W x + b); with ranges that cut off half of x, results are too small."""
    torch.manual_seed(3)
    constants = {"w": torch.rand(WIDTH, WIDTH), "b": torch.randn(WIDTH)}
    if not bias:
        del constants["b"]
    operands = {"x": torch.empty(1, WIDTH), "w": constants["w"], "b": constants.get("b")}
    return unit_graph("aten.linear", operands, [*constants], {"epilogue": [["aten.relu"]]})


def rows(count: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"x": 2 * torch.rand(1, WIDTH, generator=generator)} for _ in range(count)]


def shifts_of(graph: OpGraph, constants: dict[str, Tensor], how: Quantisation) -> dict[str, Shift]:
    steps = mean_shifts(graph, constants, [*map(arrays_of, rows(8, seed=1))], {"unit"}, how)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def shift_in_numpy(weight: np.ndarray, samples: np.ndarray) -> np.ndarray:
    scale = np.abs(weight).max(1, keepdims=True) / 127
    rounded = np.rint(weight / scale) * scale
    cut_off = np.clip(np.rint(samples * 255), 0, 255) / 255
    return np.asarray((cut_off @ rounded.T - samples @ weight.T).mean(0))


@pytest.mark.parametrize("bias", [False, True])
def test_a_bias_makes_up_for_the_mean_that_rounding_and_cutting_off_add(bias: bool) -> None:
    graph, constants = layer(bias=bias)
    plain = Quantisation({"x": RANGE})

    shifts = shifts_of(graph, constants, plain)

    samples = np.concatenate([row["x"].double().numpy() for row in rows(8, seed=1)])
    wanted = shift_in_numpy(constants["w"].double().numpy(), samples)
    found = -corrected_bias(torch.zeros(WIDTH), shifts["unit"]).numpy()
    np.testing.assert_allclose(found, wanted, atol=np.abs(wanted).max() / 250)
    assert Candidates(graph, constants).weighted == {"unit"}
    errors = []
    for how in (plain, Quantisation({"x": RANGE}, shifts=shifts)):
        made = quantised_by(graph, constants, how, PackedWeights())
        differences = [
            interpret(*made, row)["y"] - interpret(graph, constants, row)["y"]
            for row in rows(16, seed=2)
        ]
        errors.append(float(torch.cat(differences).abs().mean()))
    assert errors[1] < 0.5 * errors[0]


def test_shifts_are_read_back_and_text_without_them_stays_as_it_was() -> None:
    shift = shift_of(torch.tensor([0.5, -1.0, 0.0]))
    how = Quantisation({"x": (-1.0, 2.0)}, ("wide",), shifts={"unit": shift})

    assert Quantisation.parsed(how.text) == how
    assert Quantisation({"x": (-1.0, 2.0)}, ("wide",)).text == '[{"x":[-1.0,2.0]},["wide"]]'
    assert Quantisation.parsed('[{"x":[-1.0,2.0]},["wide"]]').shifts == {}
    for text in ('[{},[],{"unit":[1.0,"?"]}]', '[{},[],{"unit":1.0}]', "[{},[],[]]"):
        with pytest.raises(InvalidArtefact):
            Quantisation.parsed(text)


@pytest.mark.parametrize("means", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_means_that_are_no_numbers_correct_nothing(means: list[float]) -> None:
    bias = torch.tensor([1.0, 2.0])

    assert torch.equal(corrected_bias(bias, shift_of(torch.tensor(means))), bias)
