"""Registrations from the console's form, as calls of RegisterModel.

    one line of JSON ──────────────────────────> header
    the bytes of all files, one after another ─> chunks, footer       at most 1 MiB in memory

The line holds the fields of the form and names and sizes of the files. Several files become the zip
that the client would make of them. With ``"check": true`` only the beginnings of the first file and
of all .onnx files follow: a browser asks whether they would be refused before it sends gigabytes.
"""

import asyncio
import hashlib
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from braid.compiler.options import several_shapes
from braid.core.errors import InvalidRequest, InvalidUpload, UploadTooLarge
from braid.server.console.rendering import url
from braid.server.http2.calls import behaviour_of
from braid.server.rpc.status import Context
from braid.server.servicers.admin import SERVICE as ADMIN
from braid.server.servicers.admin_messages import options_from_wire
from braid.server.servicers.rest.calls import HttpCall
from braid.server.servicers.rest.operations import Operation
from braid.server.servicers.rest.routes import AnswerOperation, RestServices
from braid.server.store.records import check_model_name
from braid_client.external_data import ZipOfFiles, name_of_model
from braid_client.model_files import HEAD_BYTES, why_no_model
from braid_client.wire import admin_pb2 as wire

FORM_BYTES = 256 << 10
PIECE_BYTES = 1 << 20
MAX_FILES = 2000

CHECKED_BYTES = HEAD_BYTES + 1
"""Bytes of a model's beginning that come with ``"check": true``."""

_ONE_MODEL = (
    "several files are one model NAME.onnx and its external data; choose one model, and beside it "
    "only the files that it names"
)

REGISTER = Operation("POST", url("register"), "RegisterModel", "Register a model", service=ADMIN)


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file that a browser sends."""

    name: str  # of several files, as the model names it
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RegistrationForm:
    """A filled form."""

    header: wire.RegisterModelHeader
    files: tuple[GivenFile, ...]  # of several the model is the first
    is_check: bool

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Register(AnswerOperation):
    """Endpoint that takes a form with its files."""

    def __init__(self, services: RestServices, max_bytes: int) -> None:
        """Files have at most ``max_bytes`` together."""
        super().__init__(REGISTER, services)
        self._max_bytes = max_bytes

    async def respond(self, request: Request, context: Context, call: HttpCall) -> Response:
        body = FormBody(request.stream())
        form = read_registration(await body.line())
        check_model_name(form.header.name)
        options_from_wire(form.header)
        if form.size_bytes > self._max_bytes:
            raise UploadTooLarge(self._max_bytes)
        if form.is_check:
            await _check_beginnings(form.files, body)
            return JSONResponse({}, headers=call.headers())
        async with aclosing(_messages(form, body)) as messages:
            register = behaviour_of(self._services.others["RegisterModel"])
            answer = await register(messages, context)
        return JSONResponse({"page": url("jobs", answer.job_id)}, headers=call.headers())


def read_registration(line: bytes) -> RegistrationForm:
    """Read the fields of a form.

    Raises InvalidRequest: a field cannot be read. InvalidUpload: the files are not those of one
    model.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest("the first line of the body is no JSON object")
    header = wire.RegisterModelHeader(
        name=_text(fields, "name"),
        batch_sizes=_integers(_text(fields, "batch_sizes"), "batch sizes"),
        planner=wire.PlannerOptions(name=_text(fields, "planner")),
        precision=_text(fields, "precision"),
        lengths=_text(fields, "lengths"),
    )
    given = []
    for entry in _text(fields, "input_shapes").splitlines():
        name, equals, shape = entry.strip().rpartition("=")
        if equals and name:
            given.append((name, tuple(_integers(shape, f"the shape of {name}"))))
        elif shape:
            raise InvalidRequest(
                f"the input shape {shape[:100]!r} is not NAME=N,N,...; write one input in each line"
            )
    for number, shapes in enumerate(several_shapes(given)):
        into = header.more_input_shapes.add().shapes if number else header.input_shapes
        for name, dims in shapes.items():
            into[name].dims.extend(dims)
    return RegistrationForm(header, _files(fields.get("files")), fields.get("check") is True)


def _text(fields: dict[str, Any], name: str) -> str:
    text = fields.get(name, "")
    if not isinstance(text, str):
        raise InvalidRequest(f"{name!r} must be a string")
    return text


def _integers(text: str, what: str) -> list[int]:
    parts = re.split(r"[,\s]+", text.strip()) if text.strip() else []
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise InvalidRequest(f"{what}: {text[:100]!r} are not whole numbers between commas")
    return [int(part) for part in parts]


def _files(given: object) -> tuple[GivenFile, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_FILES:
        raise InvalidUpload(f"choose the model file, and its data if it has any: 1 to {MAX_FILES}")
    files = []
    for entry in given:
        name, size = (entry.get("name"), entry.get("size")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(name, str) or type(size) is not int or not 0 <= size < 1 << 50:
            raise InvalidRequest("'files' must be a list of objects with a 'name' and a 'size'")
        files.append(GivenFile(name, size))
    if len({file.name for file in files}) < len(files):
        raise InvalidUpload("two of these files have one name; choose those of one folder")
    if len(files) > 1 and not _is_onnx(files[0]):
        raise InvalidUpload(_ONE_MODEL)
    return tuple(files)


def _is_onnx(file: GivenFile) -> bool:
    return file.name.lower().endswith(".onnx")


class FormBody:
    """Body of a request, read line and files from the first to the last."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._held = bytearray()

    async def line(self) -> bytes:
        """Return the first line. Raises InvalidRequest: it does not end."""
        while b"\n" not in self._held:
            if len(self._held) > FORM_BYTES or not await self._receive():
                raise InvalidRequest(f"the body begins with a line of at most {FORM_BYTES} bytes")
        return self._take(self._held.index(b"\n") + 1)

    async def pieces(self, size_bytes: int) -> AsyncIterator[bytes]:
        """Yield the next bytes, at most ``PIECE_BYTES`` at a time.

        Raises InvalidUpload: the body ends before.
        """
        while size_bytes:
            wanted = min(size_bytes, PIECE_BYTES)
            while len(self._held) < wanted:
                if not await self._receive():
                    raise InvalidUpload("the body ends before its files do; send them again")
            yield self._take(wanted)
            size_bytes -= wanted

    async def _receive(self) -> bool:
        part = await anext(self._parts, b"")
        self._held += part
        return bool(part)

    def _take(self, size_bytes: int) -> bytes:
        taken = bytes(self._held[:size_bytes])
        del self._held[:size_bytes]
        return taken


async def _check_beginnings(files: Sequence[GivenFile], body: FormBody) -> None:
    """Check the beginning of the model, all of a short one, and that no other file is a model.

    Raises InvalidUpload: the first file cannot be a model, or another can.
    """
    for file in (files[0], *filter(_is_onnx, files[1:])):
        head = [piece async for piece in body.pieces(min(file.size_bytes, CHECKED_BYTES))]
        reason = why_no_model(b"".join(head)[:HEAD_BYTES], file.size_bytes <= HEAD_BYTES)
        if reason if file is files[0] else not reason:
            raise InvalidUpload(reason or _ONE_MODEL)


@dataclass(slots=True)
class _Packing:
    """Files on their way into one upload, and its digest. Works on threads; closed in between."""

    _zip: ZipOfFiles | None  # of several files
    _digest: Any = field(default_factory=hashlib.sha256)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name: str) -> None:
        if self._zip is not None:
            self._zip.begin(name)

    def add(self, piece: bytes) -> bytes:
        """Take a piece of the present file; returns what is sent for it."""
        with self._lock:
            sent = piece if self._zip is None else self._zip.write(piece)
            self._digest.update(sent)
            return sent

    def end(self) -> tuple[bytes, str]:
        """Return the last bytes, and the SHA-256 of all."""
        with self._lock:
            last = b"" if self._zip is None else self._zip.end()
            self._digest.update(last)
            return last, self._digest.hexdigest()


async def _messages(
    form: RegistrationForm, body: FormBody
) -> AsyncGenerator[wire.RegisterModelRequest, None]:
    yield wire.RegisterModelRequest(header=form.header)
    packing = _Packing(ZipOfFiles() if len(form.files) > 1 else None)
    try:
        data = [file.name for file in form.files[1:]]
        for at, file in enumerate(form.files):
            packing.begin(file.name if at else name_of_model(file.name, data))
            async for piece in body.pieces(file.size_bytes):
                chunk = await asyncio.to_thread(packing.add, piece)
                yield wire.RegisterModelRequest(chunk=chunk)
    finally:
        last, digest = packing.end()
    if last:
        yield wire.RegisterModelRequest(chunk=last)
    yield wire.RegisterModelRequest(footer=wire.RegisterModelFooter(sha256=digest))
