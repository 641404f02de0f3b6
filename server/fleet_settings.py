"""Settings of a store that several servers share: its database, its files, this node.

A fleet is n servers whose database is the same PostgreSQL. The defaults mean one server, with
SQLite and all files in the folder of its store.
"""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings

POSTGRESQL = ("postgresql", "postgresql+psycopg")
OBJECT_STORES = ("s3", "gs", "az")

_PASSWORDS = re.compile(r"(?si)(?<=://)([^/@:]*):.*@|(?<=[?&])((?:ssl)?password)=[^&]*")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def without_password(url: str) -> str:
    """Return a database's URL with ``***`` where its password stood."""
    return _PASSWORDS.sub(lambda match: f"{match[2]}=***" if match[2] else f"{match[1]}:***@", url)


def default_node_name() -> str:
    """Return the name of this host and a random part, 128 characters at most."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).lstrip(".-")[:100]
    return f"{host or 'node'}-{secrets.token_hex(3)}"


def is_host_and_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isascii() and port.isdigit() and int(port) < 2**16)


class FleetSettings(BaseSettings):
    """Settings of the shared store. Part of ``braid.server.settings.Settings``."""

    # URL of the database: sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME. Empty: SQLite in
    # the store's folder. Its password may stand in a file of its own.
    database: SecretStr = SecretStr("")
    database_password_file: Path | None = None

    # Where uploads and artefacts are kept: a folder, s3://BUCKET/PREFIX, gs:// or az://. Empty: the
    # store's folder, which is a cache otherwise; most bytes that it may hold then beside what is in
    # use, 0: half of what the store may take. The keys may stand in a file of their own.
    files: str = ""
    files_credentials_file: Path | None = None
    max_cache_bytes: ByteSize = Field(default=ByteSize(0), ge=0)

    # What no model needs any more is removed from the shared files after so many seconds.
    files_grace_seconds: float = Field(default=3600.0, ge=1)

    # This server among those that share the database, and HOST:PORT that others reach it by. Empty:
    # its host's name and its gRPC port.
    node_name: str = Field(default_factory=default_node_name)
    node_address: str = ""

    # A server that has not been heard of for so long loses its jobs to the others. So often the
    # database is read for what others changed and no notification told.
    lease_seconds: float = Field(default=10.0, ge=1, le=3600)

    @property
    def is_fleet(self) -> bool:
        """True if other servers may share the database."""
        return urlsplit(self.database.get_secret_value()).scheme in POSTGRESQL

    @field_validator("database")
    @classmethod
    def _known_database(cls, value: SecretStr) -> SecretStr:
        url = value.get_secret_value()
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:  # whose text may repeat the password
            raise ValueError("is no URL; write / in a password as %2F, @ as %40") from None
        has_path = parts.path.strip("/") != ""
        if url and not (parts.scheme in ("sqlite", *POSTGRESQL) and has_path):
            raise ValueError("give sqlite:///PATH or postgresql+psycopg://USER@HOST:PORT/NAME")
        return value

    @field_validator("files")
    @classmethod
    def _known_files(cls, value: str) -> str:
        scheme, colon, rest = value.partition("://")
        if not colon:
            return str(Path(value).expanduser().absolute()) if value else ""
        if scheme not in OBJECT_STORES or not rest.strip("/"):
            raise ValueError("give a folder, s3://BUCKET/PREFIX, gs://... or az://...")
        return value

    @field_validator("node_name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not _NODE_NAME.fullmatch(value):
            raise ValueError("give 1 to 128 letters, digits, '.', '_' or '-'")
        return value

    @field_validator("node_address")
    @classmethod
    def _reachable_address(cls, value: str) -> str:
        if value and not is_host_and_port(value):
            raise ValueError("give HOST:PORT")
        return value

    @model_validator(mode="after")
    def _shared_as_a_whole(self) -> FleetSettings:
        if self.is_fleet and not self.files:
            raise ValueError(
                "BRAID_DATABASE is shared by several servers, so BRAID_FILES must be, too: give "
                "s3://BUCKET/PREFIX or a folder that all of them reach"
            )
        if self.files and not self.is_fleet:
            raise ValueError("BRAID_FILES needs a PostgreSQL database: give BRAID_DATABASE, too")
        return self
