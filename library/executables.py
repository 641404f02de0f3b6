"""Plans that are ready to run on the device of this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.engine.device import Backend
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.runtime.yielding import no_pause
from braid.engine.worker.models import ReadyExecutable
from braid.engine.worker.requests import begin_run


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A plan that is ready to run, at one batch size."""

    number: int  # of the device's table
    ready: ReadyExecutable
    plan_id: str  # as a server answers it
    spare: Mapping[str, Tensor]  # of the outputs' types and shapes

    @staticmethod
    def of(number: int, ready: ReadyExecutable, plan_id: str) -> Executable:
        specs = {name: place.spec for name, place in ready.layout.outputs.items()}
        spare = {
            name: torch.empty(place.shape, dtype=torch_dtype(specs[name].dtype))
            for name, place in ready.layout.outputs.items()
        }
        return Executable(number, ready, plan_id, spare)

    def run(
        self, backend: Backend, given: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Run on inputs of its graph; in the device thread.

        Returns ``outputs``, filled; where their shapes follow the content, other tensors.
        """
        if self.ready.layout.has_heap:
            return backend.interpret(self.ready.program, given, no_pause)
        results = begin_run(backend, self.ready, given, outputs).finish()
        if results is not outputs:
            for name, tensor in outputs.items():
                tensor.copy_(results[name])
        return outputs
