"""Reference for a ``.pt2``: the program as torch reads it, run operator by operator in eager mode.

Shares neither conversion nor lowering nor passes with the import that it checks, and changes in
place what the program changes in place. Complex arguments and results are pairs of reals, as
torch.onnx writes them.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind

from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.importer.verification.reference import (
    NO_WORDS,
    ReferenceFailed,
    ReferenceModel,
    Words,
)
from braid.engine.runtime.memory import raise_out_of_memory


class EagerReference(ReferenceModel):
    """Exported program run operator by operator."""

    words: Words = NO_WORDS

    def __init__(self, program: torch.export.ExportedProgram, outputs: Sequence[str]) -> None:
        """Keep a program without trees, and the names of those of its results that are computed."""
        self.name = f"torch {torch.__version__} eager"
        self._program = program
        self._outputs = outputs

    @trial()
    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        run = torch.fx.Interpreter(self._program.graph_module)
        with torch.inference_mode():
            try:
                results = run.run(*self._arguments(inputs))
            except Exception as error:  # torch raises whatever it likes
                raise_out_of_memory(error)
                first = str(error).strip().partition("\n")[0][:300]
                raise ReferenceFailed(first or type(error).__name__) from error
            computed = [torch.as_tensor(result) for result in results if result is not None]
        return {
            name: (torch.view_as_real(tensor) if tensor.is_complex() else tensor)
            .contiguous()
            .clone()
            for name, tensor in zip(self._outputs, computed, strict=True)
        }

    def _arguments(self, inputs: Mapping[str, Tensor]) -> Iterator[object]:
        """Values of the placeholders of the graph, in its order; what a caller gives is copied."""
        program = self._program
        nodes = program.graph.find_nodes(op="placeholder")
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
            if spec.kind is not InputKind.USER_INPUT:
                assert spec.target is not None
                is_state = spec.target in program.state_dict
                yield (program.state_dict if is_state else program.constants)[spec.target]
            elif spec.arg.name in inputs:
                given = inputs[spec.arg.name].clone()
                in_pairs = node.meta["val"].dtype.is_complex
                yield torch.view_as_complex(given) if in_pairs else given
            else:
                yield spec.arg.value
