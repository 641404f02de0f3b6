"""Recognition of a lack of memory in the errors of libraries.

importer process, device worker ──error──> is_out_of_memory ──> the limit to raise
verdict on a model ──error──> raise_out_of_memory: it says nothing of the model
front end ──last output of an importer──> says_out_of_memory ──^

Needs no torch.
"""

from __future__ import annotations

_SIGNS = (
    "allocate memory",  # torch, ONNX Runtime's arena, the system
    "not enough memory",  # torch
    "bad allocation",  # ONNX Runtime otherwise
    "bad_alloc",
    "oneDNN answered 1 ",  # dnnl_out_of_memory
    "can't start new thread",  # its stack finds no room
)


def says_out_of_memory(text: str) -> bool:
    """Whether the text of a library says that there was no memory left."""
    return any(sign in text for sign in _SIGNS)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that there was no memory left."""
    while error is not None:
        if isinstance(error, MemoryError) or says_out_of_memory(str(error)):
            return True
        error = error.__cause__
    return False


def raise_out_of_memory(error: Exception) -> None:
    """Raise MemoryError if ``error`` is one in any form.

    For those who take any error of a library for a property of the model: a lack of memory is none.
    """
    if is_out_of_memory(error):
        raise MemoryError(str(error)) from error
