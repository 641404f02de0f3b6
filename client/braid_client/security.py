"""Tokens and certificates: a client's credentials and its check of the server's.

Client("braid.example:8001", token=token, tls=Tls(authority="ca.pem"))
"""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for a connection with TLS. Without an authority, the system's are trusted."""

    authority: str | Path | None = None  # signed the server's certificate
    certificate: str | Path | None = None  # of this client, where the server asks for one
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client's certificate and its key go together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials for a channel.

        Raises:
            OSError: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.authority),
            private_key=_read(self.key),
            certificate_chain=_read(self.certificate),
        )


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
