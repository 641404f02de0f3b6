"""TraceSetting: which inference requests are traced, in the protocol's words.

    trace_level   OFF, or TIMESTAMPS: spans of a request and its parts
    (server/observability/telemetry.py) trace_rate    one request of so many trace_count   so many
    requests more; -1: no limit trace_mode    opentelemetry

Where the spans go is the operator's business (BRAID_TRACING), and without that there are none.
Tensors are never traced: nothing that a caller sent leaves the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braid.core.errors import InvalidRequest, NotOffered, PreconditionFailed
from braid.server.observability.tracing import Sampling
from braid.server.servicers.oip.wire import messages

_LEVELS = {"OFF": False, "TIMESTAMPS": True}
_MODE = "opentelemetry"
_KNOWN = ("trace_level", "trace_rate", "trace_count", "trace_mode")


class TraceSettings:
    """The sampling of the server's tracing, or what stands for it where nothing is traced."""

    def __init__(self, sampling: Sampling | None) -> None:
        """None: this server does not trace."""
        self._sampling = sampling

    def update(self, settings: Mapping[str, Any]) -> None:
        """Apply settings; one without a value goes back to what it was at the start.

        Raises:
            InvalidRequest: a setting is unknown or out of range.
            NotOffered: it asks for what is not traced here.
            PreconditionFailed: the server does not trace.
        """
        given = {name: _value(name, each.value) for name, each in settings.items()}
        level, rate, count = (given.get(name) for name in _KNOWN[:3])
        if given.get("trace_mode", _MODE) not in (_MODE, None):
            raise NotOffered(f"traces are made by {_MODE} only")
        if level is not None and level not in _LEVELS:
            raise NotOffered("trace_level is OFF or TIMESTAMPS; tensors are not traced")
        wanted_rate = 1 if rate is None else _number("trace_rate", rate, 1)
        wanted_count = -1 if count is None else _number("trace_count", count, -1)
        if self._sampling is None:
            if given.keys() - {"trace_mode"} and level != "OFF":
                raise PreconditionFailed("this server does not trace; start it with BRAID_TRACING")
            return
        if "trace_level" in given:
            self._sampling.is_on = level is None or _LEVELS[level]
        if "trace_rate" in given:
            self._sampling.rate = wanted_rate
        if "trace_count" in given:
            self._sampling.count = wanted_count

    def response(self) -> Any:
        """TraceSettingResponse: what holds now."""
        now = self._sampling or Sampling(is_on=False)
        values = ("TIMESTAMPS" if now.is_on else "OFF", str(now.rate), str(now.count), _MODE)
        response = messages.TraceSettingResponse()
        for name, value in zip(_KNOWN, values, strict=True):
            response.settings[name].value.append(value)
        return response


def _value(name: str, values: Any) -> str | None:
    if name not in _KNOWN:
        raise InvalidRequest(
            f"trace setting {name[:100]!r} is not known; known: {', '.join(_KNOWN)}"
        )
    if len(values) > 1:
        raise InvalidRequest(f"trace setting {name!r} takes one value")
    return str(values[0]) if values else None


def _number(name: str, text: str, smallest: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10) or int(text) < smallest:
        raise InvalidRequest(f"trace setting {name!r} is an integer from {smallest} on")
    return int(text)
