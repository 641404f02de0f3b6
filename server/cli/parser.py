"""Parser of the command line: errors name the sub-command, and what was probably meant."""

import argparse
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells: 128 + SIGINT."""

Known = TypeVar("Known", bound=argparse.Namespace)
_LEFT_OVER = "_unrecognized_args"  # where argparse collects what a parser below did not know


class Parser(argparse.ArgumentParser):
    """Parser of ``braid``, and of each sub-command: each refuses what it does not know itself."""

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for two namespaces
        self, args: Sequence[str] | None = None, namespace: Known | None = None
    ) -> tuple[Known | argparse.Namespace, list[str]]:
        """Parse all of ``args``; what is left over is an error of this parser."""
        parsed, left = super().parse_known_args(args, namespace)
        left = [*vars(parsed).pop(_LEFT_OVER, ()), *left]
        if left:
            options = [option for action in self._actions for option in action.option_strings]
            hints = "".join(closest(word.partition("=")[0], options) for word in left)
            self.error(f"unknown: {' '.join(left)}{hints}")
        return parsed, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError unless ``value`` is one of the choices, if there are any."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        reason = f"unknown: {value!s}{closest(str(value), choices)} (known: {', '.join(choices)})"
        raise argparse.ArgumentError(action, reason)


def closest(text: str, words: Collection[str]) -> str:
    """Return a question about the known word that is most like ``text``; "" if none is."""
    similar = get_close_matches(text, words, n=1, cutoff=0.6)
    return f"; did you mean {similar[0]}?" if similar else ""


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not an integer: {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"give {least} or more, not {text}")
    return number


at_least_zero, at_least_one = partial(_at_least, 0), partial(_at_least, 1)


def counts(text: str) -> tuple[int, ...]:
    """Parse ``1,4``: numbers from 1 on."""
    return tuple(at_least_one(part) for part in text.split(","))


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"give seconds above 0, not {text!r}")
    return number


def host_and_port(text: str) -> str:
    """Parse ``HOST:PORT``, ``[ADDRESS]:PORT`` or a target of gRPC such as ``unix:/PATH``."""
    host, colon, port = text.rpartition(":")
    if text.startswith(("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")):
        return text
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 2**16
    if not (host and colon and is_port) or "/" in host or (":" in host and host[0] != "["):
        raise argparse.ArgumentTypeError(f"give HOST:PORT, such as 127.0.0.1:8001, not {text!r}")
    return text
