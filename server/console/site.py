"""Routing of the console: its paths, who may do what, and its headers.

GET   models, jobs, schedules, devices  those who have signed in; without tokens everyone
POST  register, models/M/versions/V/infer  callers of RegisterModel and ModelInfer, as elsewhere
POST  sign-in                           callers with an admin token; few attempts a minute
POST  cancel, delete, profile           those who have signed in, from our own pages only
"""

import base64
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from braid.charts.svg import STYLE, ZOOMS
from braid.core.errors import BraidError, InvalidRequest, NotFound
from braid.server.console.facts import Facts, ScheduleAddress
from braid.server.console.pages import devices, jobs, models, schedules
from braid.server.console.rendering import BASE, Page, Renderer, url
from braid.server.console.sessions import Sessions, SignInLimit, set_cookie
from braid.server.ports.http.requests import is_from_here, read_form
from braid.server.servicers.rest.operations import INFER, Operation

log = logging.getLogger("braid.console")

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
SECURITY = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'self' 'sha256-{_STYLE_HASH}'; script-src 'self'; "
        "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
)
TRY = Operation("POST", f"{BASE}models/{{name}}/versions/{{version}}/infer", INFER, "Run a model")
ASSETS = {
    "console.css": "text/css; charset=utf-8",
    **dict.fromkeys(("console.js", "register.js", "try.js"), "text/javascript; charset=utf-8"),
    "icon.svg": "image/svg+xml",
}


def _read_assets() -> dict[str, bytes]:
    folder = files("braid.server.console") / "assets"
    return {name: (folder / name).read_bytes() for name in ASSETS}


@dataclass(frozen=True, slots=True)
class Console:
    """The route below ``/console/``."""

    _facts: Facts
    _sessions: Sessions
    _calls: Sequence[BaseRoute]  # for scripts
    _is_tls: bool
    _is_guarded: bool  # pages are for those who signed in, too
    _limit: SignInLimit = field(default_factory=SignInLimit)
    _renderer: Renderer = field(default_factory=Renderer)
    _assets: Mapping[str, bytes] = field(default_factory=_read_assets)

    def routes(self) -> list[BaseRoute]:
        return [
            *self._calls,
            Route(f"{BASE}{{path:path}}", self.answer, methods=["GET", "POST"]),
            Route(BASE.rstrip("/"), _to_console),
            Route("/", _to_console),
        ]

    async def answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1").removeprefix(BASE)
        parts = [unquote(part) for part in path.split("/")]
        if parts[0] in self._assets and len(parts) == 1:
            return Response(self._assets[parts[0]], media_type=ASSETS[parts[0]])
        is_admin = self._sessions.is_signed_in(request.headers)
        try:
            if request.method == "POST":
                return await self._post(parts, request, is_admin)
            if self._is_guarded and not self._sessions.may_look(request.headers):
                query = f"?{request.url.query}" if request.url.query else ""
                return await self._ask_to_sign_in(path + query)
            return await self._get(parts, request, is_admin)
        except NotFound as error:
            return await self._problem(HTTPStatus.NOT_FOUND, str(error), is_admin)
        except InvalidRequest as error:
            return await self._problem(HTTPStatus.BAD_REQUEST, str(error), is_admin)
        except BraidError as error:
            return await self._problem(HTTPStatus.CONFLICT, str(error), is_admin)

    # -- showing ------------------------------------------------------------------------------

    async def _get(self, parts: list[str], request: Request, is_admin: bool) -> Response:
        query = {name: values[-1] for name, values in parse_qs(request.url.query).items()}
        block = _number(query["block"]) if query.get("block") else None
        device, against = query.get("device", ""), query.get("against", "")
        shapes = query.get("shapes", "")
        match parts:
            case ["schedules", name, version, size, ("svg" | "perfetto" | "json") as kind]:
                at = ScheduleAddress(name, version, _number(size), device, block, shapes)
                return _attachment(*await schedules.download(self._facts, at, kind))
            case ["schedules", name, version, size]:
                at = ScheduleAddress(name, version, _number(size), device, block, shapes)
                page = await schedules.one_schedule(self._facts, at, _zoom(query))
            case ["compare", name, version, size, other]:
                at = ScheduleAddress(name, version, _number(size), device, None, shapes)
                to = replace(at, batch_size=_number(other), device=against or device)
                page = await schedules.comparison(self._facts, at, to)
            case ["models", name]:
                version = query.get("version", "")
                page = await models.one_model(self._facts, name, version)
            case ["jobs", job_id]:
                page = await jobs.one_job(self._facts, job_id)
            case ["jobs"]:
                page = await jobs.all_jobs(self._facts)
            case ["register"]:
                page = await jobs.registration(self._facts)
            case ["devices"]:
                page = await devices.devices(self._facts)
            case ["sign-in"]:
                page = _sign_in_page("")
            case [""]:
                page = await models.all_models(self._facts, query.get("q", ""))
            case _:
                return await self._problem(HTTPStatus.NOT_FOUND, "There is no such page.", is_admin)
        return await self._page(page, is_admin)

    async def _ask_to_sign_in(self, path: str) -> Response:
        """Return the page to sign in on, which leads back to ``path``."""
        page = _sign_in_page("", "" if path == "sign-in" else path)
        status = HTTPStatus.OK if path == "sign-in" else HTTPStatus.UNAUTHORIZED
        return await self._page(page, False, status, ("WWW-Authenticate", "Bearer"))

    async def _problem(self, status: HTTPStatus, message: str, is_admin: bool) -> Response:
        page = Page("problem.html", status.phrase, {"message": message})
        return await self._page(page, is_admin, status)

    async def _page(
        self,
        page: Page,
        is_admin: bool,
        status: HTTPStatus = HTTPStatus.OK,
        *headers: tuple[str, str],
    ) -> Response:
        body = await self._renderer.html(page, is_admin=is_admin)
        return Response(body, status, dict((*headers, *SECURITY)), "text/html; charset=utf-8")

    # -- changing -----------------------------------------------------------------------------

    async def _post(self, parts: list[str], request: Request, is_admin: bool) -> Response:
        if not is_from_here(request):
            return await self._problem(
                HTTPStatus.FORBIDDEN, "This request does not come from a page here.", is_admin
            )
        if parts == ["sign-in"]:
            return await self._sign_in(request, await read_form(request))
        if parts == ["sign-out"]:
            self._sessions.sign_out(request.headers)
            to = url("sign-in") if self._is_guarded else BASE
            return _redirect(to, set_cookie("", secure=self._is_tls))
        match parts:
            case ["jobs", _, "cancel"] | ["models", _, _, "delete" | "profile"] if not is_admin:
                message = "Sign in with the admin token to change things."
                return await self._problem(HTTPStatus.FORBIDDEN, message, is_admin)
            case ["jobs", job_id, "cancel"]:
                await self._facts.runner.cancel(job_id)
                return _redirect(url("jobs", job_id))
            case ["models", name, version, "delete"]:
                await self._facts.policies.delete(name, version)
                return _redirect(BASE)
            case ["models", name, version, "profile"]:
                model = await self._facts.queries.find(name, version)
                job = await self._facts.runner.schedule_again(model.name, model.version)
                return _redirect(url("jobs", job.id))
            case _:
                message = "There is no such action."
                return await self._problem(HTTPStatus.NOT_FOUND, message, is_admin)

    async def _sign_in(self, request: Request, body: bytes) -> Response:
        peer = request.client.host if request.client else ""
        if seconds := math.ceil(self._limit.wait_seconds(peer)):
            page = _sign_in_page(f"Too many wrong tokens came from here; wait {seconds} s.")
            retry = ("Retry-After", str(seconds))
            return await self._page(page, False, HTTPStatus.TOO_MANY_REQUESTS, retry)
        form = parse_qs(body.decode("utf-8", "replace"))
        back = form.get("back", [""])[-1]
        session = self._sessions.sign_in(form.get("token", [""])[-1].strip())
        if session is None:
            must_wait = self._limit.failed(peer)
            extra = {"peer": peer, "must_wait": must_wait}
            log.warning("a wrong token was tried on the console", extra=extra)
            page = _sign_in_page("This is not the admin token.", back)
            return await self._page(page, False, HTTPStatus.FORBIDDEN)
        log.info("signed in to the console", extra={"peer": peer})
        return _redirect(_below(back), set_cookie(session, secure=self._is_tls))


def _sign_in_page(problem: str, back: str = "") -> Page:
    """Page to sign in on; ``back``: path below BASE to go to then."""
    return Page("sign-in.html", "Sign in", {"problem": problem, "back": back})


def _below(path: str) -> str:
    """Return a path below BASE, quoted; BASE for what a form of another page may have sent."""
    is_plain = path.isascii() and path.isprintable() and not set(path) & set(' \\"<>#')
    return f"{BASE}{path}" if is_plain else BASE


def _attachment(name: str, content_type: str, text: str) -> Response:
    """Return a file to save. Model names have letters, digits, dots and dashes only."""
    header = ("Content-Disposition", f'attachment; filename="{name}"')
    return Response(text.encode(), HTTPStatus.OK, dict((header, *SECURITY)), content_type)


def _redirect(where: str, *headers: tuple[str, str]) -> Response:
    told = dict((("Location", where), *headers, *SECURITY))
    return Response(b"", HTTPStatus.SEE_OTHER, told)


async def _to_console(_: Request) -> Response:
    return _redirect(BASE)


def _number(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 9):
        raise InvalidRequest(f"not a number: {text[:20]!r}")
    return sign * int(digits)


def _zoom(query: Mapping[str, str]) -> int | None:
    zoom = _number(query["zoom"]) if query.get("zoom") else None
    if zoom not in (None, *ZOOMS):
        raise InvalidRequest(f"the zoom is one of {', '.join(map(str, ZOOMS))}")
    return zoom
