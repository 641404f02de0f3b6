"""Fallback to the registry's kernel where a library refuses to run another one.

Whether cuDNN has an engine for a convolution in some type and layout, or Inductor and the compilers
below it can make something of a unit, shows when the kernel runs for the first time, before any
capture. A kernel that failed is not tried again.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from braid.engine.cuda.driver.faults import classify
from braid.engine.program.kernel import Kernel

Run = Callable[..., Tensor | tuple[Tensor, ...]]

log = logging.getLogger("braid.kernels")


def with_fallback(kernel: Kernel, otherwise: Run, unit: str) -> Kernel:
    """The kernel, or ``otherwise`` if its first run fails for other reasons than the device's."""
    tried: Run = kernel.function
    decided: list[Run] = []

    def run(*inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        if decided:
            return decided[0](*inputs)
        try:
            result = tried(*inputs)
        except Exception as error:  # compilers raise whatever they like
            if classify(error, "") is not None:
                raise
            said = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:300]
            log.warning("unit %s does not run on %s: %s", unit, kernel.variant, said)
            log.debug("why", exc_info=True)
            decided.append(otherwise)
            return otherwise(*inputs)
        decided.append(tried)
        return result

    return replace(kernel, run=run)


def reject_residue(run: Callable[[], Tensor]) -> None:
    """Run twice, the second time into NaN: ``RuntimeError`` if uninitialised memory is read."""
    result = run()
    if result.isnan().any():
        return  # because of what is put in
    result.fill_(torch.nan)
    del result
    if run().isnan().any():
        raise RuntimeError("the result depends on what its memory held before")
