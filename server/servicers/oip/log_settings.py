"""LogSettings: how much the server logs, in the protocol's words.

    log_verbose_level 1+ = DEBUG    log_info = INFO    log_warning = WARNING    log_error = ERROR

Levels contain each other: without warnings there is no info. File and format are the operator's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from braid.core.errors import InvalidRequest
from braid.server.servicers.oip.wire import messages

log = logging.getLogger("braid.rpc")

_FLAGS: Mapping[str, int] = {
    "log_verbose_level": logging.DEBUG,
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
"""Setting -> level, least severe first."""

_FIXED: Mapping[str, str] = {"log_file": "", "log_format": "default"}


class LogSettings:
    """The level of the root logger, and what it was at the start."""

    def __init__(self) -> None:
        self._logger = logging.getLogger()
        self._level_at_start = self._logger.level

    def update(self, settings: Mapping[str, Any]) -> None:
        """Apply settings; one without a value goes back to what it was at the start.

        Raises:
            InvalidRequest: a setting is unknown, of the wrong type, or contradicts another.
        """
        flags = _flags(self._logger.level)
        for name in settings:
            if name in _FIXED:
                _check_fixed(name, settings[name])
            elif name in _FLAGS:
                given = _flag(name, settings[name])
                flags[name] = _flags(self._level_at_start)[name] if given is None else given
            else:
                known = ", ".join((*_FLAGS, *_FIXED))
                raise InvalidRequest(f"log setting {name[:100]!r} is not known; known: {known}")
        level = _level(flags)
        if level != self._logger.level:
            self._logger.setLevel(level)
            log.warning("log level set", extra={"log_level": logging.getLevelName(level)})

    def response(self) -> Any:
        """LogSettingsResponse: what holds now."""
        response = messages.LogSettingsResponse()
        for name, is_on in _flags(self._logger.level).items():
            if name == "log_verbose_level":
                response.settings[name].uint32_param = int(is_on)
            else:
                response.settings[name].bool_param = is_on
        for name, value in _FIXED.items():
            response.settings[name].string_param = value
        return response


def _flags(level: int) -> dict[str, bool]:
    return {name: level <= at for name, at in _FLAGS.items()}


def _level(flags: Mapping[str, bool]) -> int:
    names = list(_FLAGS)
    lowest = next((i for i, name in enumerate(names) if flags[name]), len(names))
    if off := [name for name in names[lowest:] if not flags[name]]:
        raise InvalidRequest(
            f"{names[lowest]} contains {', '.join(off)}: turn them on, or {names[lowest]} off"
        )
    return _FLAGS[names[lowest]] if lowest < len(names) else logging.CRITICAL


def _flag(name: str, setting: Any) -> bool | None:
    which = setting.WhichOneof("parameter_choice")
    wanted = "uint32_param" if name == "log_verbose_level" else "bool_param"
    if which not in (None, wanted):
        raise InvalidRequest(f"log setting {name!r} must be a {wanted.removesuffix('_param')}")
    return bool(getattr(setting, wanted)) if which else None


def _check_fixed(name: str, setting: Any) -> None:
    which = setting.WhichOneof("parameter_choice")
    if which is not None and getattr(setting, which) != _FIXED[name]:
        raise InvalidRequest(f"{name} is decided when the server starts (BRAID_LOG_FORMAT)")
