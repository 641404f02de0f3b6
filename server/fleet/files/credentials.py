"""Credentials and addresses of an object store: variables of the environment, and of a file.

A file keeps keys out of the environment of the server, which other programs of its user can read.
"""

import re
from pathlib import Path

from braid.core.errors import StartupError
from braid.core.regular_file import read_file

MAX_FILE_BYTES = 1 << 20

_LINE = re.compile(r"(?:export\s+)?((?:AWS|AZURE|GOOGLE)_[A-Z0-9_]+)\s*=\s*(.*)")


def read_credentials(path: Path) -> dict[str, str]:
    """Return the variables of a file with lines ``AWS_ACCESS_KEY_ID=...``; ``#`` begins a comment.

    Raises StartupError: it cannot be read, or a line has another form. The message repeats no
    value.
    """
    try:
        lines = read_file(path, MAX_FILE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StartupError(
            f"BRAID_FILES_CREDENTIALS_FILE={path} cannot be read: {reason}"
        ) from None
    credentials = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise StartupError(
                f"BRAID_FILES_CREDENTIALS_FILE={path}, line {number}: give AWS_ACCESS_KEY_ID=..., "
                "or another variable AWS_, AZURE_ or GOOGLE_"
            )
        credentials[matched[1]] = _without_quotes(matched[2])
    return credentials


def _without_quotes(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value
