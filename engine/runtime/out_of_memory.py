"""Recognition of a lack of memory in the errors of libraries.

importer process, device worker ──error──> is_out_of_memory ──> the limit to raise
device worker ──error──> leaves_interpreter_unsound ──> it ends, and another one starts
verdict on a model ──error──> raise_out_of_memory: it says nothing of the model
front end ──last output of an importer──> says_out_of_memory ──^

Needs no torch.
"""

from __future__ import annotations

import re

_SIGNS = (
    "allocate memory",  # torch, ONNX Runtime's arena, the system
    "not enough memory",  # torch
    "bad allocation",  # ONNX Runtime otherwise
    "bad_alloc",
    "oneDNN answered 1 ",  # dnnl_out_of_memory
    "can't start new thread",  # its stack finds no room
)

_WHOLE_ENDS = re.compile(
    r"(could not create a primitive|failed to map segment from shared object)$", re.MULTILINE
)
"""Signs only at the end of a line. torch says the first where oneDNN has a kernel and could not
make it, whatever it answered; that there is no kernel is said of "a primitive descriptor". The
dynamic linker says the second of a library that found no room; it names other reasons behind a
colon."""


def says_out_of_memory(text: str) -> bool:
    """Whether the text of a library says that there was no memory left."""
    return any(sign in text for sign in _SIGNS) or _WHOLE_ENDS.search(text) is not None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that there was no memory left."""
    while error is not None:
        if isinstance(error, MemoryError) or says_out_of_memory(str(error)):
            return True
        error = error.__cause__
    return False


def leaves_interpreter_unsound(error: BaseException | None) -> bool:
    """Whether the interpreter itself met the lack of memory, so that it cannot be relied on.

    An allocation that a library asks for may fail and nothing else is harmed. Where there is none
    even for the interpreter's own objects, code of others does not always put back what it took:
    seen were a function that stood in for another one, and errors without an exception.
    """
    while error is not None:
        if isinstance(error, SystemError) or (type(error) is MemoryError and not error.args):
            return True
        error = error.__cause__ or error.__context__
    return False


def raise_out_of_memory(error: Exception) -> None:
    """Raise MemoryError if ``error`` is one in any form.

    For those who take any error of a library for a property of the model: a lack of memory is none.
    """
    if is_out_of_memory(error):
        raise MemoryError(str(error)) from error
