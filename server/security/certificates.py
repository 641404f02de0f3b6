"""TLS with certificates that may be replaced while the server runs.

The files are looked at when a connection is made. A pair that does not fit together, as between
the two writes of a renewal, is not taken: the last good one goes on until the files are whole.
"""

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
        extra = () if self.client_authority is None else (self.client_authority,)
        return (self.certificate, self.key, *extra)


_Contexts = Mapping[ssl.VerifyMode, ssl.SSLContext]
"""TLS of both ports by what is asked of callers, from one reading of the files."""


class Certificates:
    """Certificates in use. Belongs to the event loop."""

    def __init__(self, files: TlsFiles) -> None:
        """Read and check the files. StartupError: unreadable, or key and certificate differ."""
        self._files = files
        try:
            self._stamps = self._look()
            self._present = self._load()
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"TLS cannot be used: {_reason(error, files)}") from None

    @property
    def are_mutual(self) -> bool:
        return self._files.client_authority is not None

    def grpc_context(self) -> ssl.SSLContext:
        """Return TLS for a port of gRPC; HTTP/2 is agreed on by ALPN."""
        return self._following(ssl.CERT_REQUIRED)

    def http_context(self) -> ssl.SSLContext:
        """Return TLS for the HTTP port, whose callers may show a certificate.

        Probes and browsers show none; the protocol's calls need one where gRPC's do.
        """
        return self._following(ssl.CERT_OPTIONAL)

    def _following(self, of_callers: ssl.VerifyMode) -> ssl.SSLContext:
        """Return a context whose connections have the newest certificates."""

        def follow(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self.newest()[of_callers]

        context = self._load()[of_callers]
        context.sni_callback = follow  # called for every connection, name or not
        return context

    def newest(self) -> _Contexts:
        """Return the contexts of the next connection; made again if a file changed."""
        try:
            stamps = self._look()
            if stamps != self._stamps:
                self._present = self._load()
                self._stamps = stamps
                log.info("certificates read again")
        except (OSError, ssl.SSLError) as error:
            log.error(
                "the last good certificates go on",
                extra={"reason": _reason(error, self._files)},
            )
        return self._present

    def _look(self) -> Stamps:
        statuses = [file.stat() for file in self._files.all]
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)

    def _load(self) -> _Contexts:
        for file in self._files.all:  # OpenSSL, which would wait for a pipe, opens them after this
            read_file(file, MAX_FILE_BYTES)
        contexts = {each: self._context(each) for each in (ssl.CERT_REQUIRED, ssl.CERT_OPTIONAL)}
        contexts[ssl.CERT_REQUIRED].set_alpn_protocols(["h2"])
        return contexts

    def _context(self, of_callers: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION  # HTTP/2 forbids it (RFC 9113, section 9.2.1)
        context.load_cert_chain(self._files.certificate, self._files.key)
        if self._files.client_authority is not None:
            context.load_verify_locations(self._files.client_authority)
            context.verify_mode = of_callers
            # A resumed session would count a certificate that is not trusted any more.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def _reason(error: Exception, files: TlsFiles) -> str:
    names = ", ".join(map(str, files.all))
    if isinstance(error, ssl.SSLError):
        return f"{names} do not hold a certificate and its key in PEM ({error.reason})"
    return f"{names}: {getattr(error, 'strerror', None) or error}"
