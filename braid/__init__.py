"""Braid: networks that run as fast as this machine can, as a library or served by ``braid serve``.

    import braid

    with braid.compile("resnet50.onnx", batch_sizes=[1, 4]) as net:
        scores = net(image)

What is named here is loaded when it is first used: ``import braid`` costs nothing.

In a wheel, ``braid.core`` and its like lie in this folder. In a checkout they lie beside it, and
are found there, whether the checkout is installed or only named in ``PYTHONPATH``.
"""

import os.path
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braid.core.errors import BraidError
    from braid.library.compiling import compile
    from braid.library.network import Network
    from braid.library.saving import load
    from braid.version import __version__

if not os.path.isdir(os.path.join(__path__[0], "core")):
    _checkout = os.path.dirname(os.path.abspath(__path__[0]))
    __path__.append(_checkout)
    sys.path.append(os.path.join(_checkout, "client"))  # last: an installed client goes before

_HOMES = {
    "BraidError": "braid.core.errors",
    "Network": "braid.library.network",
    "compile": "braid.library.compiling",
    "load": "braid.library.saving",
    "__version__": "braid.version",
}

__all__ = ["BraidError", "Network", "__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'braid' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
