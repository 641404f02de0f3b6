"""The shared place: an object store (S3, GCS, Azure) or a folder that all servers reach.

    put     small: one request; large: in parts, some at once
    fetch   in ranges, some at once, handed on in their order
    claim   an object that says whose place it is

No file is ever whole in memory. Each request ends after ``REQUEST_SECONDS`` and is tried again a
few times; after ``RETRY_SECONDS`` the place counts as away.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, NotSupportedError
from obstore.store import LocalStore, ObjectStore, from_url

from braid.core.disk import sync
from braid.core.errors import BraidError, InvalidArtefact, StartupError, Unavailable
from braid.core.regular_file import NoRegularFile, check_file
from braid.server.fleet.files.credentials import read_credentials
from braid.server.fleet.files.failures import (
    FailureLog,
    is_refusal,
    lacks_bucket,
    no_room,
    reason_of,
    status_of,
)
from braid.server.fleet.records import SharedFilesAway

if TYPE_CHECKING:  # they exist for checkers only
    from obstore.store import ClientConfig, RetryConfig

PART_BYTES = 8 << 20
PARTS_AT_ONCE = 4
MOST_PARTS = 9000  # S3 takes 10,000

CONNECT_SECONDS, REQUEST_SECONDS, RETRY_SECONDS = 3.0, 60.0, 15.0

_RETRIES: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
    "backoff": {
        "init_backoff": timedelta(milliseconds=200),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}

MARKER = "braid-fleet"
"""Key of the object that names the database whose files lie here."""

_KEY = re.compile(r"(uploads|artefacts|samples)/[0-9a-f]{64}\.[0-9a-f]{16}")

T = TypeVar("T")
Write = Callable[[memoryview], None]
"""Takes the next bytes of an object. Called on a thread."""

_WHERE = "AWS_ACCESS_KEY_ID, ..., or BRAID_FILES_CREDENTIALS_FILE"
_HTTP = "_ALLOW_HTTP"  # said by the address
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


def open_place(url: str, credentials: Path | None = None) -> ObjectPlace:
    """Return the place of a URL or folder; nothing is asked of it yet.

    Args:
        credentials: file with variables that win over those of the environment.

    Raises:
        StartupError: there is no such kind of place, or its configuration is none.
    """
    scheme, colon, rest = url.partition("://")
    given = {} if credentials is None else read_credentials(credentials)
    try:
        if not colon or scheme == "file":
            folder = Path(rest if colon else url)
            folder.mkdir(parents=True, exist_ok=True)
            return ObjectPlace(url, LocalStore(folder), folder)
        config: Any = {
            name.lower(): value for name, value in given.items() if not name.endswith(_HTTP)
        }
        options = _client_options(given)
        store = from_url(url, config=config, client_options=options, retry_config=_RETRIES)
        return ObjectPlace(url, store)
    except Exception as error:  # of many kinds: keys of the configuration, values, URLs
        raise StartupError(
            f"the shared files {url} cannot be used ({reason_of(error)}); check BRAID_FILES"
        ) from error


def _client_options(given: Mapping[str, str]) -> ClientConfig:
    variables = {**os.environ, **given}
    endpoints = (variables.get(name, "") for name in _ENDPOINTS)
    return {
        "allow_http": any(endpoint.startswith("http://") for endpoint in endpoints),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
    }


class ObjectPlace:
    """Objects by key, below one URL. Every call may raise what ``failures`` says."""

    def __init__(self, url: str, store: ObjectStore, folder: Path | None = None) -> None:
        """Ask nothing yet; ``folder`` is that of a shared folder."""
        self.url = url
        self._store = store
        self._folder = folder
        self._failures = FailureLog(url)

    async def claim(self, identity: str) -> None:
        """Mark the place as that of a database, or find it marked so.

        Raises StartupError: it cannot be used, or is another database's. Unavailable: it does not
        answer.
        """
        with self._said_why_unusable():
            with suppress(AlreadyExistsError):
                if await self._marked() is None:
                    await self._create(MARKER, identity.encode())
            owner = await self._marked()
        if owner != identity:
            raise StartupError(
                f"the shared files {self.url} belong to another database; choose another place "
                f"with BRAID_FILES, or delete its object {MARKER} if that database is gone"
            )

    async def check_unclaimed(self) -> None:
        """Check that a database that never had shared files may take the place.

        Raises StartupError: it cannot be used, or holds files that no database has marked as its.
        Unavailable: it does not answer.
        """
        with self._said_why_unusable():
            # Files first: who takes the place at the same time marks it before it puts any.
            is_lost = await self._holds_files() and await self._marked() is None
        if is_lost:
            raise StartupError(
                f"the shared files {self.url} hold files of models, lack the object {MARKER} that "
                "says of which database, and this database is new; check BRAID_DATABASE, put the "
                "right database back, or choose another place with BRAID_FILES"
            )

    @contextmanager
    def _said_why_unusable(self) -> Iterator[None]:
        try:
            yield
        except BraidError as error:
            if why := _why_unusable(error.__cause__):
                raise StartupError(f"the shared files {self.url} cannot be used: {why}") from error
            raise

    async def put(self, key: str, path: Path) -> None:
        """Put a file under a key that nobody else puts."""
        size_bytes = (await asyncio.to_thread(path.stat)).st_size
        put = obstore.put_async(
            self._store,
            key,
            path,
            use_multipart=size_bytes > PART_BYTES,
            chunk_size=max(PART_BYTES, -(-size_bytes // MOST_PARTS)),
            max_concurrency=PARTS_AT_ONCE,
        )
        try:
            await self._watched("put", put)
        except SharedFilesAway as error:
            if await self._only_reads(error):
                raise no_room() from error
            raise
        if self._folder is not None:
            for path in (self._folder / key, (self._folder / key).parent):
                await asyncio.to_thread(sync, path)

    async def fetch(self, key: str, size_bytes: int, write: Write) -> None:
        """Hand an object of a known size on, in order.

        Raises:
            FileNotFoundError: there is none.
            InvalidArtefact: it has another size.
            OSError: ``write`` raised it.
        """
        await self._check(key)
        try:
            meta = await self._watched("look", obstore.head_async(self._store, key))
        except FileNotFoundError:  # that the whole bucket is gone only a GET is told
            await self._watched("look", obstore.get_async(self._store, key))
            raise
        if meta["size"] != size_bytes:
            raise InvalidArtefact(f"it has {meta['size']} bytes, not {size_bytes}")
        begins = range(0, size_bytes, PART_BYTES)
        for first in range(0, len(begins), PARTS_AT_ONCE):
            some = begins[first : first + PARTS_AT_ONCE]
            ends = (min(begin + PART_BYTES, size_bytes) for begin in some)
            for part in await asyncio.gather(*map(partial(self._range, key), some, ends)):
                await asyncio.to_thread(write, memoryview(part))

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects; those that do not exist are deleted already."""
        for key in keys:
            with suppress(FileNotFoundError):
                await self._watched("delete", obstore.delete_async(self._store, key))

    async def _holds_files(self) -> bool:
        with self._failures.watching("list"):
            async for objects in obstore.list(self._store, chunk_size=500):
                if any(_KEY.fullmatch(entry["path"]) for entry in objects):
                    return True
        return False

    async def _range(self, key: str, begin: int, end: int) -> obstore.Bytes:
        work = obstore.get_range_async(self._store, key, start=begin, end=end)
        return await self._watched("fetch", work)

    async def _marked(self) -> str | None:
        """Identity of the database whose place this is; None: it is nobody's."""
        try:
            await self._check(MARKER)
            marker = await self._watched("look", obstore.get_async(self._store, MARKER))
            return bytes(await marker.bytes_async()).decode(errors="replace")
        except FileNotFoundError:
            return None

    async def _check(self, key: str) -> None:
        """Raise InvalidArtefact if a shared folder has something else than a file for an object."""
        if self._folder is None:
            return
        try:
            await asyncio.to_thread(check_file, self._folder / key)
        except NoRegularFile as error:
            raise InvalidArtefact(f"{key}: {error.strerror}") from error

    async def _create(self, key: str, content: bytes) -> None:
        """Put a small object unless there is one. AlreadyExistsError: there is."""
        try:
            await self._watched("put", obstore.put_async(self._store, key, content, mode="create"))
        except (SharedFilesAway, NotSupportedError) as error:
            if isinstance(error, SharedFilesAway) and status_of(error) != 501:
                raise
            work = obstore.put_async(self._store, key, content, use_multipart=False)
            await self._watched("put", work)  # a place without conditional puts

    async def _only_reads(self, error: BaseException) -> bool:
        """True if a place refuses a put as an error of its own, and answers reads: it is full."""
        if status_of(error) != 500:
            return False
        try:
            await self._marked()
        except Unavailable:
            return False
        return True

    async def _watched(self, what: str, work: Awaitable[T]) -> T:
        with self._failures.watching(what):
            return await work


def _why_unusable(error: BaseException | None) -> str:
    """Why a place cannot be used until the operator changes something; "": for a moment only."""
    if error is None:
        return ""
    if isinstance(error, NoRegularFile):
        return f"of {MARKER} there, {error.strerror}; remove it"
    if lacks_bucket(error):
        return "there is no such bucket; create it, or check BRAID_FILES"
    if is_refusal(error):
        return (
            f"the credentials are refused ({reason_of(error)}); check them ({_WHERE}), "
            "and that they may read, write, list and delete there"
        )
    if "credential" in str(error).lower():
        return f"there are no credentials ({reason_of(error)}); give them ({_WHERE})"
    return ""
