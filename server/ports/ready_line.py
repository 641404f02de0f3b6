"""Facts that the server logs when it is ready: its addresses, and calls to try.

ready  grpc=127.0.0.1:8001 rest=http://127.0.0.1:8002/v2 console=http://127.0.0.1:8002/ ...
  | braid infer squeezenet --input random
  | { printf ...; head -c 602112 /dev/zero; } | curl ... http://127.0.0.1:8002/v2/models/...
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from braid.core.tensor import DTYPE_BYTES, TensorType
from braid.server.observability.logs import Verbatim
from braid.server.security.addresses import is_wildcard
from braid.server.settings import Settings

USUAL_ADDRESS = "127.0.0.1:8001"

MAX_HEAD_CHARS = 2048
"""Longer descriptions of the inputs are not shown."""

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
    near = "127.0.0.1" if is_wildcard(settings.host) else host
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


def _command(settings: Settings, address: str, model: ModelToTry | None) -> str:
    """Command that calls this server, on this machine."""
    words = ["braid", "register", "NAME", "FILE.onnx", "--wait"]
    if model is not None:
        words = ["braid", "infer", model.name, "--input", "random"]
    if address != USUAL_ADDRESS:
        words += ["--address", address]
    if settings.tls_certificate is not None:
        words += ["--tls-ca", str(settings.tls_certificate.absolute())]
    if tokens := settings.infer_token_file or settings.admin_token_file:
        words += ["--token-file", str(tokens.absolute())]
    return shlex.join(words)


def _curl(settings: Settings, site: str, model: ModelToTry) -> str:
    """Shell line that runs the model on zeros over REST; "": a caller needs more than a line."""
    if settings.tls_client_ca is not None:
        return ""  # and a certificate
    head, size_bytes = _zeros(model.inputs)
    if len(head) > MAX_HEAD_CHARS:
        return ""
    words = ["curl", "-sS", "--data-binary", "@-"]
    words += ["-H", f"Inference-Header-Content-Length: {len(head)}"]
    if settings.tls_certificate is not None:
        words += ["--cacert", str(settings.tls_certificate.absolute())]
    line = shlex.join(words)
    if tokens := settings.infer_token_file or settings.admin_token_file:
        first = f"$(head -n 1 {shlex.quote(str(tokens.absolute()))})"
        line += f' -H "Authorization: Bearer {first}"'
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
