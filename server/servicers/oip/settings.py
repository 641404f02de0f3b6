"""Settings that callers may change: the log level, and which requests are traced.

    log_verbose_level 1+ = DEBUG    log_info = INFO    log_warning = WARNING    log_error = ERROR

    trace_level   OFF, or TIMESTAMPS: spans of a request and its parts
    trace_rate    one request of so many
    trace_count   so many requests more; -1: no limit
    trace_mode    opentelemetry

Log levels contain each other: without warnings there is no info. File and format of the log, and
where spans go (BRAID_TRACING), are the operator's settings. Tensors are never traced.
"""

import logging
from collections.abc import Mapping
from typing import Any

from braid.core.errors import InvalidRequest, NotOffered, PreconditionFailed
from braid.server.observability.tracing import Sampling
from braid.server.rpc.status import Context
from braid.server.servicers.oip.wire import messages

log = logging.getLogger("braid.rpc")

_LOG_FLAGS: Mapping[str, int] = {
    "log_verbose_level": logging.DEBUG,
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
"""Setting -> level, least severe first."""

_LOG_FIXED: Mapping[str, str] = {"log_file": "", "log_format": "default"}


_TRACE_LEVELS = {"OFF": False, "TIMESTAMPS": True}
_TRACE_MODE = "opentelemetry"
_TRACE_SETTINGS = ("trace_level", "trace_rate", "trace_count", "trace_mode")


class LogLevels:
    """RPC about logging: the level of the root logger, now and at the start."""

    def __init__(self) -> None:
        self._logger = logging.getLogger()
        self._level_at_start = self._logger.level

    async def LogSettings(self, request: Any, context: Context) -> Any:
        self.update(request.settings)
        return self.response()

    def update(self, settings: Mapping[str, Any]) -> None:
        """Apply settings; one without a value is as at the start. InvalidRequest: a bad one."""
        flags = _log_flags(self._logger.level)
        for name in settings:
            if name in _LOG_FIXED:
                _check_fixed(name, settings[name])
            elif name in _LOG_FLAGS:
                given = _log_flag(name, settings[name])
                flags[name] = _log_flags(self._level_at_start)[name] if given is None else given
            else:
                names = ", ".join((*_LOG_FLAGS, *_LOG_FIXED))
                raise InvalidRequest(f"log setting {name[:100]!r} is not known; known: {names}")
        level = _log_level(flags)
        if level != self._logger.level:
            self._logger.setLevel(level)
            log.warning("log level set", extra={"log_level": logging.getLevelName(level)})

    def response(self) -> Any:
        response = messages.LogSettingsResponse()
        for name, is_on in _log_flags(self._logger.level).items():
            if name == "log_verbose_level":
                response.settings[name].uint32_param = int(is_on)
            else:
                response.settings[name].bool_param = is_on
        for name, value in _LOG_FIXED.items():
            response.settings[name].string_param = value
        return response


def _log_flags(level: int) -> dict[str, bool]:
    return {name: level <= at for name, at in _LOG_FLAGS.items()}


def _log_level(flags: Mapping[str, bool]) -> int:
    names = list(_LOG_FLAGS)
    lowest = next((i for i, name in enumerate(names) if flags[name]), len(names))
    if off := [name for name in names[lowest:] if not flags[name]]:
        raise InvalidRequest(
            f"{names[lowest]} contains {', '.join(off)}: turn them on, or {names[lowest]} off"
        )
    return _LOG_FLAGS[names[lowest]] if lowest < len(names) else logging.CRITICAL


def _log_flag(name: str, setting: Any) -> bool | None:
    field = setting.WhichOneof("parameter_choice")
    wanted = "uint32_param" if name == "log_verbose_level" else "bool_param"
    if field not in (None, wanted):
        raise InvalidRequest(f"log setting {name!r} must be a {wanted.removesuffix('_param')}")
    return bool(getattr(setting, wanted)) if field else None


def _check_fixed(name: str, setting: Any) -> None:
    field = setting.WhichOneof("parameter_choice")
    if field is not None and getattr(setting, field) != _LOG_FIXED[name]:
        raise InvalidRequest(f"{name} is decided when the server starts (BRAID_LOG_FORMAT)")


class TraceSettings:
    """RPC about tracing: which requests the server traces."""

    def __init__(self, sampling: Sampling | None) -> None:
        """Change ``sampling``; None: this server does not trace."""
        self._sampling = sampling

    async def TraceSetting(self, request: Any, context: Context) -> Any:
        """Change which requests are traced, if asked to, and return which are."""
        if request.model_name:
            raise NotOffered("requests are traced alike for all models; leave the name out")
        self.update(request.settings)
        return self.response()

    def update(self, settings: Mapping[str, Any]) -> None:
        """As ``LogLevels.update``; raises NotOffered, too, or PreconditionFailed: no tracing."""
        given = {name: _trace_value(name, setting.value) for name, setting in settings.items()}
        level, rate, count = (given.get(name) for name in _TRACE_SETTINGS[:3])
        if given.get("trace_mode", _TRACE_MODE) not in (_TRACE_MODE, None):
            raise NotOffered(f"traces are made by {_TRACE_MODE} only")
        if level is not None and level not in _TRACE_LEVELS:
            raise NotOffered("trace_level is OFF or TIMESTAMPS; tensors are not traced")
        wanted_rate = 1 if rate is None else _trace_number("trace_rate", rate, 1)
        wanted_count = -1 if count is None else _trace_number("trace_count", count, -1)
        if self._sampling is None:
            if given.keys() - {"trace_mode"} and level != "OFF":
                raise PreconditionFailed("this server does not trace; start it with BRAID_TRACING")
            return
        if "trace_level" in given:
            self._sampling.is_on = level is None or _TRACE_LEVELS[level]
        if "trace_rate" in given:
            self._sampling.rate = wanted_rate
        if "trace_count" in given:
            self._sampling.count = wanted_count

    def response(self) -> Any:
        now = self._sampling or Sampling(is_on=False)
        values = ("TIMESTAMPS" if now.is_on else "OFF", str(now.rate), str(now.count), _TRACE_MODE)
        response = messages.TraceSettingResponse()
        for name, value in zip(_TRACE_SETTINGS, values, strict=True):
            response.settings[name].value.append(value)
        return response


def _trace_value(name: str, values: Any) -> str | None:
    if name not in _TRACE_SETTINGS:
        raise InvalidRequest(
            f"trace setting {name[:100]!r} is not known; known: {', '.join(_TRACE_SETTINGS)}"
        )
    if len(values) > 1:
        raise InvalidRequest(f"trace setting {name!r} takes one value")
    return str(values[0]) if values else None


def _trace_number(name: str, text: str, smallest: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10) or int(text) < smallest:
        raise InvalidRequest(f"trace setting {name!r} is an integer from {smallest} on")
    return int(text)
