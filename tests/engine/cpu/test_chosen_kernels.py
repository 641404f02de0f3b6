"""A unit on each of its kernels; a program on kernels that were chosen."""

import pytest
import torch

from braid.core.errors import PreconditionFailed
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.stage_timer import CpuStageTimer
from braid.engine.device import AskedStage
from braid.engine.ops.dtypes import arrays_of, tensors_of
from braid.engine.passes.specialise import interpret
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.recorded_inputs import Activations
from braid.engine.timing.samples import TimerOptions
from tests.engine.cpu.executors import executor_of, on_kernels
from tests.engine.cpu.test_lanes import SHAPE, random_graph
from tests.engine.timing.running import finish

executor = executor_of(threads=1)


def test_every_variant_of_every_unit_gives_the_same_numbers(executor: CpuExecutor) -> None:
    graph, constants = random_graph(1, units=6)
    inputs = {"x": torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))}
    program = on_kernels(graph, constants, 1)
    wanted = interpret(graph, constants, inputs)

    for unit in range(6):
        for kernel in program.variants(unit):
            changed = program.with_variant(unit, kernel.variant)
            env = changed.environment(arrays_of(inputs))
            for each in range(6):
                executor.run_unit(changed, each, env)
            for name, made in tensors_of(changed.results(env)).items():
                torch.testing.assert_close(made, wanted[name], rtol=1e-4, atol=1e-4)
    with pytest.raises(PreconditionFailed, match="no kernel 'magic'"):
        program.with_variant(0, "magic")


def test_what_runs_in_bursts_has_no_rival_that_does_not(executor: CpuExecutor) -> None:
    graph, constants = random_graph(1, units=6)
    program = on_kernels(graph, constants, 1)

    for unit in range(6):
        variants, rivals = program.variants(unit), program.rivals(unit)
        assert rivals[0].variant == variants[0].variant
        assert len({kernel.recipe is None for kernel in rivals}) == 1


def test_a_choice_binds_all_units_with_that_signature(executor: CpuExecutor) -> None:
    graph, constants = random_graph(2, units=12)
    usual = on_kernels(graph, constants, 1)
    signatures = [usual.binding.source.signature(unit, graph) for unit in graph.operators]

    chosen = on_kernels(graph, constants, 1, {signatures[0]: "registry"})

    for signature, before, after in zip(signatures, usual.units, chosen.units, strict=True):
        same = signature != signatures[0]
        assert after.kernel.variant == (before.kernel.variant if same else "registry")


def test_activations_serve_other_kernels_and_the_hopeless_end_early(executor: CpuExecutor) -> None:
    graph, constants = random_graph(3, units=6)
    program = on_kernels(graph, constants, 1)
    inputs = {"x": torch.randn(SHAPE).numpy()}
    activations = Activations(program, inputs, executor, 1 << 20)
    timer = CpuStageTimer(executor, 1 << 20, TimerOptions())

    def repeats(hopeless_us: float) -> int:
        stage = AskedStage([[0]], hopeless_us=hopeless_us)
        timing, _ = finish(timer.measure(program, lambda: inputs, stage, no_pause))
        return timing.repeats

    assert activations.serve(program.with_variant(0, "registry"))
    assert not activations.serve(on_kernels(graph, constants, 1))
    assert repeats(hopeless_us=0.0) == 1
    assert repeats(hopeless_us=1e9) > 1
