"""Specialising: a template and input shapes become a static graph.

    template + shapes ──walk──> each operator run on meta tensors (shapes only, no data)
        ├── host operands and conditions: evaluated on the CPU, become attributes and choices
        ├── shape arithmetic: evaluated on the CPU, gone or a small constant
        └── the rest: operators of the static graph, every spec known

Nothing here touches the data of a request, except the small inputs a model's shapes or branches
depend on (``static_inputs``), whose content is part of the specialisation. Asked by the importer
(to verify an upload) and by the device worker (once per batch size).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Branch, Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.dtypes import arrays_of, spec_of, tensors_of, torch_dtype
from braid.engine.ops.evaluation import TENSOR_BYTES, TooLarge, attempt, call_in_fp32, meta_like
from braid.engine.ops.families.quantised_unit import DEQUANTISE
from braid.engine.ops.kinds import op
from braid.engine.passes.body import all_operators, live, with_constants
from braid.engine.passes.spelling import IDENTITY, SPELLED, spelled
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.stopping import check_stopped
from braid.engine.runtime.yielding import YieldToRequests, no_pause

COND = "braid.cond"

HOST_ELEMENTS = 2**24  # most elements of a tensor evaluated on the host
FOLDED_ELEMENTS = 2**16  # most elements of shape arithmetic kept as a new constant


def static_inputs(template: OpGraph) -> tuple[str, ...]:
    """Names of inputs whose content decides shapes or branches of the template."""
    producers: dict[str, Operator] = {}
    wanted: list[str] = []
    for operator in all_operators(template.operators):
        producers.update(dict.fromkeys(operator.outputs, operator))
        wanted.extend(operator.host.values())
    names: set[str] = set()
    visited: set[str] = set()
    while wanted:
        value = wanted.pop()
        if value in visited:
            continue
        visited.add(value)
        if value in template.inputs:
            names.add(value)
        elif (maker := producers.get(value)) and (
            maker.kind == COND or not op(maker.kind).shape_only
        ):
            wanted.extend(maker.reads())
            wanted.extend(out for branch in maker.branches for out in branch.outputs)
    return tuple(name for name in template.inputs if name in names)


def specialise(
    template: OpGraph,
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, TensorType],
    static_values: Mapping[str, Tensor] | None = None,
    pause: YieldToRequests = no_pause,
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Return the static graph of ``template`` for these input shapes, and its constants.

    ``static_values`` is the content of the inputs named by ``static_inputs``; ``pause`` is called
    before each operator. Cost: some tens of microseconds per operator, on meta tensors.

    Raises ``InvalidRequest``, naming the input that does not fit the template, or the operator
    that cannot run on these shapes.
    """
    return _Walk(template, weights, inputs, static_values or {}, pause).to_the_end().result()


@dataclass(frozen=True, slots=True)
class Trace:
    """Operators that a specialisation took or evaluated; host operands are attributes."""

    operators: tuple[Operator, ...]
    conditions: tuple[str, ...]  # values that chose branches
    contents: Mapping[str, Tensor]  # of weights, and of values evaluated on the host
    specs: Mapping[str, TensorType]
    outputs: Mapping[str, str]  # name the caller sees -> value


def trace(
    template: OpGraph,
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, TensorType],
    static_values: Mapping[str, Tensor] = MappingProxyType({}),
) -> Trace:
    """Return what ``specialise`` does with these arguments; raises as that."""
    return _Walk(template, weights, inputs, static_values, no_pause).to_the_end().trace()


def _check_inputs(template: OpGraph, inputs: Mapping[str, TensorType]) -> None:
    if set(inputs) != set(template.inputs):
        raise InvalidRequest(
            f"the model's inputs are {sorted(template.inputs)}, not {sorted(inputs)}"
        )
    symbols: dict[str, int] = {}
    for name, declared in template.inputs.items():
        given = inputs[name]
        fits = given.dtype == declared.dtype and len(given.shape) == len(declared.shape)
        for want, have in zip(declared.shape, given.shape, strict=False):
            fits = fits and isinstance(have, int)
            if fits and isinstance(want, str) and isinstance(have, int):
                want = symbols.setdefault(want, have)
            fits = fits and want == have
        if not fits:
            bound = f" where {symbols}" if symbols else ""
            raise InvalidRequest(f"input {name!r} is {given}, the model takes {declared}{bound}")
        if given.size_bytes > TENSOR_BYTES:
            raise InvalidRequest(f"input {name!r} is {given}, more than {TENSOR_BYTES} bytes")


class _Walk:
    """State of one specialisation: content and specs of values, and the operators kept."""

    def __init__(
        self,
        template: OpGraph,
        weights: Mapping[str, Tensor],
        inputs: Mapping[str, TensorType],
        static_values: Mapping[str, Tensor],
        pause: YieldToRequests,
    ) -> None:
        _check_inputs(template, inputs)
        self._pause = pause
        self._template = template
        self._weights = weights
        self._inputs = inputs
        self._meta = {name: _meta(spec) for name, spec in inputs.items()}
        self._meta |= {name: meta_like(tensor) for name, tensor in weights.items()}
        self._contents = dict(static_values)  # content of values, where it was evaluated
        self._kept: list[Operator] = []
        self._made_by: dict[str, int] = {}  # value -> index in _kept
        self._names = {op.name for op in all_operators(template.operators)}
        self._host_budget = HOST_ELEMENTS
        self._scope: dict[str, str] = {}
        self._taken: list[Operator] = []
        self._conditions: list[str] = []

    def to_the_end(self) -> Self:
        with torch.no_grad():
            self._run(self._template.operators, {})
        return self

    def _run(self, operators: Iterable[Operator], scope: dict[str, str]) -> None:
        """Take operators in order; ``scope`` maps renamed and aliased values."""
        self._scope = scope
        for operator in operators:
            self._pause()
            inputs = tuple(scope.get(name, name) for name in operator.inputs)
            host = {key: scope.get(name, name) for key, name in operator.host.items()}
            if operator.kind == COND:
                self._choose(operator, host["condition"], scope)
                self._scope = scope
            elif operator.kind == IDENTITY:
                scope[operator.outputs[0]] = inputs[0]
            else:
                outputs = tuple(self._fresh(name, scope) for name in operator.outputs)
                attributes: dict[str, Literal] = dict(operator.attributes)
                for key, value in host.items():
                    attributes[key] = self._content(value, operator).tolist()
                name, kind = operator.name, operator.kind
                self._taken.append(Operator(name, kind, inputs, outputs, attributes, host))
                alias = self._take(Operator(name, kind, inputs, outputs, attributes))
                if alias:
                    scope[operator.outputs[0]] = alias

    def _fresh(self, value: str, scope: dict[str, str]) -> str:
        """Return a name for a new value: its own, unless another branch has used that."""
        name, count = value, 1
        while name in self._meta:
            count += 1
            name = f"{value}~{count}"
        scope[value] = name
        return name

    def _choose(self, operator: Operator, condition: str, scope: dict[str, str]) -> None:
        """Take the operators of the chosen branch in the place of a conditional."""
        content = self._content(condition, operator)
        if content.numel() != 1:
            raise InvalidRequest(f"the condition of {operator.name!r} is not a single value")
        self._conditions.append(condition)
        branch: Branch = operator.branches[0 if content.item() else 1]
        inner = dict(scope)
        self._run(branch.operators, inner)
        for outer, value in zip(operator.outputs, branch.outputs, strict=True):
            scope[outer] = inner.get(value, value)

    def _take(self, operator: Operator) -> str:
        """Evaluate shape arithmetic, else keep; the value that the only output equals, or ""."""
        operands = [self._meta[name] if name else None for name in operator.inputs]
        if op(operator.kind).shape_only:
            self._learn(operator, attempt(operator, operands))
            return ""
        try:
            outputs = attempt(operator, operands)
        except InvalidRequest as error:  # a shape that depends on content?
            if isinstance(error, TooLarge) or not self._is_shape_arithmetic(operator):
                raise
            self._learn(operator, self._evaluated(operator))
            return ""
        for name, output in zip(operator.outputs, outputs, strict=False):
            self._meta[name] = output
        small = sum(output.numel() for output in outputs) <= FOLDED_ELEMENTS
        if small and self._is_shape_arithmetic(operator):
            self._learn(operator, self._evaluated(operator))
            return ""
        parts = self._spelled(operator)
        if parts and parts[0].kind == IDENTITY:
            return parts[0].inputs[0]
        for part in parts:
            self._take(part)
        if not parts:
            self._made_by.update(dict.fromkeys(operator.outputs, len(self._kept)))
            self._kept.append(operator)
        return ""

    def _spelled(self, operator: Operator) -> list[Operator]:
        """The operators in the place of one; none: it stays."""
        if operator.kind not in SPELLED or "" in operator.inputs:
            return []
        meta = [self._meta[name] for name in (*operator.inputs, operator.outputs[0])]
        result = operator.outputs[0]
        taken = self._meta.keys() | self._names
        names = (name for n in count(1) if (name := f"{result}.{n}") not in taken)
        found = spelled(operator, meta, self._known, lambda: next(names))
        if found is None:
            return []
        parts, constants = found
        self._contents.update(constants)
        self._meta.update((name, meta_like(tensor)) for name, tensor in constants.items())
        return parts

    def _known(self, name: str) -> Tensor | None:
        return self._contents.get(name, self._weights.get(name))

    def _is_shape_arithmetic(self, operator: Operator) -> bool:
        """True if everything the operator reads is known and small, and no quantised weight."""
        if operator.kind == DEQUANTISE:
            return False
        for name in filter(None, operator.inputs):
            has_content = name in self._contents or name in self._weights
            if not has_content or self._meta[name].numel() > FOLDED_ELEMENTS:
                return False
        return True

    def _learn(self, operator: Operator, outputs: Sequence[Tensor]) -> None:
        for name, output in zip(operator.outputs, outputs, strict=False):
            self._contents[name] = output
            self._meta[name] = meta_like(output)

    def _evaluated(self, operator: Operator) -> tuple[Tensor, ...]:
        operands = [self._at_hand(name) if name else None for name in operator.inputs]
        return attempt(operator, operands, "cpu")

    def _at_hand(self, name: str) -> Tensor:
        return self._contents[name] if name in self._contents else self._weights[name].cpu()

    def _content(self, value: str, reader: Operator) -> Tensor:
        """Evaluate a value that ``reader`` needs on the host, and what it depends on."""
        wanted: set[int] = set()
        pending = [value]
        while pending:
            name = pending.pop()
            if not name or name in self._contents or name in self._weights:
                continue
            if name in self._inputs:
                raise InvalidRequest(
                    f"operator {reader.name!r} ({reader.kind}) needs the content of input "
                    f"{name!r} in advance: shapes or branches of the model depend on it"
                )
            if self._made_by[name] not in wanted:
                wanted.add(self._made_by[name])
                pending.extend(self._kept[self._made_by[name]].inputs)
        for index in sorted(wanted):
            operator = self._kept[index]
            self._host_budget -= sum(self._meta[name].numel() for name in operator.outputs)
            if self._host_budget < 0:
                raise InvalidRequest(
                    f"operator {reader.name!r} ({reader.kind}) depends on the content of more "
                    f"than {HOST_ELEMENTS} elements, which cannot be evaluated in advance"
                )
            outputs = self._evaluated(operator)
            self._contents.update(zip(operator.outputs, outputs, strict=False))
        return self._at_hand(value)

    def trace(self) -> Trace:
        return Trace(
            tuple(self._taken),
            tuple(self._conditions),
            {**self._weights, **self._contents},
            {name: spec_of(tensor) for name, tensor in self._meta.items()},
            self._outputs(),
        )

    def _outputs(self) -> dict[str, str]:
        return {n: self._scope.get(value, value) for n, value in self._template.outputs.items()}

    def result(self) -> tuple[OpGraph, dict[str, Tensor]]:
        """The operators that the outputs need, and the constants those read."""
        outputs = self._outputs()
        kept = live(self._kept, outputs.values())
        computed = {name for operator in kept for name in operator.outputs}
        graph = OpGraph(
            name=self._template.name,
            inputs=dict(self._inputs),
            outputs=outputs,
            constants={},
            operators=kept,
            specs={name: spec_of(self._meta[name]) for name in self._meta if name in computed},
            sources=self._template.sources,
        )
        content = {**self._contents, **self._weights}
        given = {name for name in content if name not in computed and name not in self._inputs}
        named = {name: content[name] for name in self._meta if name in given}
        graph, constants = with_constants(graph, named)
        # Executors would copy what repeats its elements in every run.
        made = {name: constants[name].contiguous() for name in constants.keys() & self._contents}
        return graph, {**constants, **made}


def _meta(spec: TensorType) -> Tensor:
    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="meta")  # type: ignore[arg-type]


def interpreted(
    graph: OpGraph,
    constants: Mapping[str, Tensor | Array],
    inputs: Arrays,
    pause: YieldToRequests = no_pause,
) -> Arrays:
    """``interpret`` on arrays."""
    return arrays_of(interpret(graph, tensors_of(constants), tensors_of(inputs), pause))


def interpret(
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    pause: YieldToRequests = no_pause,
    device: torch.device | None = None,
    rounded_to: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Run a static graph operator by operator: the reference that every executor must match.

    ``pause`` is called before each operator; ``device`` is where operators make tensors from
    nothing. Results in FP32 are rounded as in a model of type ``rounded_to``, if given.
    """
    values: dict[str, Tensor] = {**constants, **inputs}
    last_reader = {
        name: i for i, operator in enumerate(graph.operators) for name in operator.inputs
    }
    for name in graph.outputs.values():
        last_reader[name] = len(graph.operators)
    with torch.inference_mode():
        for i, operator in enumerate(graph.operators):
            pause()
            check_stopped()
            operands = [values[name] if name else None for name in operator.inputs]
            dtypes = [torch_dtype(graph.spec(name).dtype) for name in operator.outputs]
            with device or nullcontext():  # not around the pause: others work in it
                results = call_in_fp32(operator, operands, dtypes)
            if rounded_to is not None:
                results = tuple(
                    x.to(rounded_to).float() if x.dtype == torch.float32 else x for x in results
                )
            named = zip(operator.outputs, results, strict=False)
            values.update((name, result) for name, result in named if name in last_reader)
            for name in operator.inputs:
                if last_reader.get(name) == i:
                    values.pop(name, None)
    return {name: values[value] for name, value in graph.outputs.items()}
