"""torch's Python kernels for meta tensors, without the compiler that they load.

    add on meta tensors ──> torch._refs.add ──first call──> import torch._dynamo: 1.3 s of CPU time

These kernels say that torch.compile must not trace them. The mark is an attribute of the function,
set at its first call by the compiler, which is loaded for that: with sympy, Inductor and the
distributed packages. A process that never compiles can set it itself. Where another version of
torch has nothing of the kind, nothing is set, and the first call loads the compiler as before.
"""

from collections.abc import Iterator
from types import FunctionType

from torch import _compile
from torch._decomp import global_decomposition_table

_MARK = "__dynamo_disable"
_DEPTH = 6  # of decorators around one kernel


def leave_compiler_out() -> None:
    """Let no kernel for meta tensors load torch's compiler; for processes that do not compile."""
    for kernels in global_decomposition_table.values():
        for kernel in kernels.values():
            for function in _untraced(kernel, _DEPTH):
                function.__dict__.setdefault(_MARK, function)


def _untraced(kernel: object, depth: int) -> Iterator[FunctionType]:
    """Functions inside of a kernel that ``torch._disable_dynamo`` has wrapped."""
    if not isinstance(kernel, FunctionType) or not depth:
        return
    cells = dict(zip(kernel.__code__.co_freevars, kernel.__closure__ or (), strict=True))
    inner = cells["fn"].cell_contents if "fn" in cells else None
    if isinstance(inner, FunctionType):
        if kernel.__code__.co_filename == _compile.__file__:
            yield inner
        yield from _untraced(inner, depth - 1)
