"""Facts that the server logs when it is ready: its addresses, and calls to try.

ready  grpc=127.0.0.1:8001 rest=http://127.0.0.1:8002/v2 console=http://127.0.0.1:8002/ ...
  | braid infer squeezenet --input random
  | { printf ...; head -c 602112 /dev/zero; } | curl ... http://127.0.0.1:8002/v2/models/...
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from braid.core.tensor import DTYPE_BYTES, TensorType
from braid.server.observability.logs import Verbatim
from braid.server.security.addresses import is_wildcard
from braid.server.security.tokens import HASHED
from braid.server.settings import Settings

USUAL_ADDRESS = "127.0.0.1:8001"

MAX_HEAD_CHARS = 2048
"""Longer descriptions of the inputs are not shown."""

_UNKNOWN = "TOKEN_FILE"

_ZERO_BYTES = {**DTYPE_BYTES, "BYTES": 4}
"""Bytes of an element that is zero, or the empty string, in binary tensor data."""


@dataclass(frozen=True, slots=True)
class ModelToTry:
    """Model that answers, and its inputs by name."""

    name: str
    inputs: Mapping[str, TensorType]


def ready_facts(
    settings: Settings, grpc_port: int, http_port: int, model: ModelToTry | None
) -> dict[str, str]:
    """Facts by name; ``model`` is the one to try, None if none answers."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    near = near_address(settings, grpc_port).rpartition(":")[0]
    scheme = "http" if settings.tls_certificate is None else "https"
    site = f"{scheme}://{near}:{http_port}/"
    facts = {
        "grpc": f"{host}:{grpc_port}",
        "http": f"{host}:{http_port}",
        "rest": f"{site}v2",
        "console": site,
        "try": Verbatim(_command(settings, f"{near}:{grpc_port}", model)),
    }
    if model is not None and (line := _curl(settings, site, model)):
        facts["curl"] = Verbatim(line)
    return facts


def near_address(settings: Settings, port: int) -> str:
    """Address of a port, as callers on this machine reach it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'127.0.0.1' if is_wildcard(settings.host) else host}:{port}"


def _command(settings: Settings, address: str, model: ModelToTry | None) -> str:
    if model is None:
        return register_command(settings, address)
    words = ["braid", "infer", model.name, "--input", "random"]
    return shlex.join(words + _options(settings, address, _shown_token(settings, is_admin=False)))


def register_command(settings: Settings, address: str) -> str:
    """Command that registers a model at an ``address`` here; names in capitals to fill in."""
    words = ["braid", "register", "NAME", "FILE.onnx", "--wait"]
    address = settings.admin_address or address
    return shlex.join(words + _options(settings, address, _shown_token(settings, is_admin=True)))


def _options(settings: Settings, address: str, token: str) -> list[str]:
    words = [] if address == USUAL_ADDRESS else ["--address", address]
    if settings.tls_certificate is not None and not address.startswith("unix:"):
        words += ["--tls-ca", str(settings.tls_certificate.absolute())]
        if settings.tls_client_ca is not None:
            words += ["--tls-cert", "CERTIFICATE.pem", "--tls-key", "KEY.pem"]
    return words + (["--token-file", token] if token else [])


def _shown_token(settings: Settings, *, is_admin: bool) -> str:
    """File whose first line is a token for a call; TOKEN_FILE: there is none; "": none is needed.

    Files with hashes, which no token can be read from, are not to be shown.
    """
    files = [settings.admin_token_file] if is_admin else []
    if not is_admin:
        files = [settings.infer_token_file, settings.admin_token_file]
    given = settings.admin_token, settings.infer_token
    has_tokens = any((settings.admin_token_file, settings.infer_token_file)) or any(
        token.get_secret_value() for token in given
    )
    if not has_tokens or (settings.allow_unauthenticated and not is_admin):
        return ""
    return next((str(file.absolute()) for file in files if file and _begins_plain(file)), _UNKNOWN)


def _begins_plain(file: Path) -> bool:
    try:
        first = file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(first) and "#" not in first and not HASHED.fullmatch(first)


def _curl(settings: Settings, site: str, model: ModelToTry) -> str:
    """Shell line that runs the model on zeros over REST; "": a caller needs more than a line."""
    token = _shown_token(settings, is_admin=False)
    if settings.tls_client_ca is not None or token == _UNKNOWN:
        return ""  # and a certificate, or a token that is only kept as a hash
    head, size_bytes = _zeros(model.inputs)
    if len(head) > MAX_HEAD_CHARS:
        return ""
    words = ["curl", "-sS", "--data-binary", "@-"]
    words += ["-H", f"Inference-Header-Content-Length: {len(head)}"]
    if settings.tls_certificate is not None:
        words += ["--cacert", str(settings.tls_certificate.absolute())]
    line = shlex.join(words)
    if token:
        line += f' -H "Authorization: Bearer $(head -n 1 {shlex.quote(token)})"'
    body = f"printf %s {shlex.quote(head)}; head -c {size_bytes} /dev/zero"
    return f"{{ {body}; }} | {line} {site}v2/models/{model.name}/infer"


def _zeros(inputs: Mapping[str, TensorType]) -> tuple[str, int]:
    """Return the JSON of a request of zeros, open extents as 1, and its bytes of binary data."""
    described, total_bytes = [], 0
    for name, spec in inputs.items():
        shape = [extent if isinstance(extent, int) else 1 for extent in spec.shape]
        elements = TensorType(spec.dtype, tuple(shape)).elements
        size_bytes = elements * _ZERO_BYTES[spec.dtype]
        total_bytes += size_bytes
        parameters = {"binary_data_size": size_bytes}
        described.append(
            {"name": name, "datatype": spec.dtype, "shape": shape, "parameters": parameters}
        )
    return json.dumps({"inputs": described}, separators=(",", ":")), total_bytes
