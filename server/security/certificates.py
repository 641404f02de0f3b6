"""TLS with certificates that may be replaced while the server runs.

The files are looked at when a connection is made. A pair that does not fit together, as between
the two writes of a renewal, is not taken: the last good one goes on until the files are whole.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from braid.core.errors import StartupError
from braid.core.regular_file import read_file

log = logging.getLogger("braid.security")

MAX_FILE_BYTES = 1 << 20

Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one server."""

    certificate: Path  # the server's, then those between it and its authority
    key: Path
    client_authority: Path | None = None  # callers must show a certificate signed by it

    @property
    def all(self) -> tuple[Path, ...]:
        """Paths of all files that are named."""
        extra = () if self.client_authority is None else (self.client_authority,)
        return (self.certificate, self.key, *extra)


class Certificates:
    """Certificates in use. Called by gRPC's threads and by the event loop."""

    def __init__(self, files: TlsFiles) -> None:
        """Read and check the files.

        Raises:
            StartupError: one cannot be read, or key and certificate do not belong together.
        """
        self._files = files
        try:
            self._stamps = self._look()
            self._present, self._http = self._load()
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"TLS cannot be used: {_reason(error, files)}") from None

    @property
    def are_mutual(self) -> bool:
        """Bool: callers must show a certificate, too."""
        return self._files.client_authority is not None

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC port, which follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._present, self.newest, require_client_authentication=self.are_mutual
        )

    def http_context(self) -> ssl.SSLContext:
        """Return TLS for the HTTP port, which follows the files; callers may show a certificate.

        Probes and browsers show none; the protocol's calls need one where gRPC's do.
        """

        def follow(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            self.newest()
            connection.context = self._http

        context = self._server_context()
        context.sni_callback = follow  # called for every connection, name or not
        return context

    def newest(self) -> Any:
        """Return the credentials of the next connection; read again if a file changed."""
        try:
            stamps = self._look()
            if stamps != self._stamps:
                self._present, self._http = self._load()
                self._stamps = stamps
                log.info("certificates read again")
        except (OSError, ssl.SSLError) as error:
            log.error(
                "the last good certificates go on",
                extra={"reason": _reason(error, self._files)},
            )
        return self._present

    def _look(self) -> Stamps:
        found = [file.stat() for file in self._files.all]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)

    def _load(self) -> tuple[Any, ssl.SSLContext]:
        # OpenSSL, which would wait for a pipe, opens them after this.
        certificate, key, *authority = (read_file(file, MAX_FILE_BYTES) for file in self._files.all)
        config = grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authority[0] if authority else None
        )
        return config, self._server_context()

    def _server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._files.certificate, self._files.key)
        if self._files.client_authority is not None:
            context.load_verify_locations(self._files.client_authority)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _reason(error: Exception, files: TlsFiles) -> str:
    names = ", ".join(map(str, files.all))
    if isinstance(error, ssl.SSLError):
        return f"{names} do not hold a certificate and its key in PEM ({error.reason})"
    return f"{names}: {getattr(error, 'strerror', None) or error}"
