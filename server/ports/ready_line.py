"""Facts that the server logs when it is ready: its addresses, and a call to try.

ready  grpc=127.0.0.1:8001 http=127.0.0.1:8002 console=http://127.0.0.1:8002/ try="braid infer ..."
"""

from __future__ import annotations

import shlex

from braid.server.security.addresses import is_wildcard
from braid.server.settings import Settings

USUAL_ADDRESS = "127.0.0.1:8001"


def ready_facts(settings: Settings, grpc_port: int, http_port: int, model: str) -> dict[str, str]:
    """Facts by name; ``model`` answers and is the one to try, "" if there is none."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    near = "127.0.0.1" if is_wildcard(settings.host) else host
    scheme = "http" if settings.tls_certificate is None else "https"
    return {
        "grpc": f"{host}:{grpc_port}",
        "http": f"{host}:{http_port}",
        "console": f"{scheme}://{near}:{http_port}/",
        "try": _call(settings, f"{near}:{grpc_port}", model),
    }


def _call(settings: Settings, address: str, model: str) -> str:
    """Command that calls this server, on this machine."""
    words = ["braid", "register", "NAME", "FILE.onnx", "--wait"]
    if model:
        words = ["braid", "infer", model, "--input", "random"]
    if address != USUAL_ADDRESS:
        words += ["--address", address]
    if settings.tls_certificate is not None:
        words += ["--tls-ca", str(settings.tls_certificate.absolute())]
    if tokens := settings.infer_token_file or settings.admin_token_file:
        words += ["--token-file", str(tokens.absolute())]
    return shlex.join(words)
