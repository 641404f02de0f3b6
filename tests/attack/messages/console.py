"""Requests to the console: forms, query strings and paths."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from tests.attack.messages.http_requests import HttpRequest, get, post
from tests.attack.target import PREY

SCRIPT = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;"
SCHEDULE = f"/console/schedules/{PREY}/1/1"

PAGES: Mapping[str, tuple[int, Sequence[str]]] = {
    f"/console/?q={quote(SCRIPT)}": (200, [ESCAPED]),
    "/console/?q=" + "%00%ff%0d%0a": (200, []),
    "/console/?" + "&".join(f"q{n}=x" for n in range(500)): (200, []),
    "/console/?" + "&" * 3000: (200, []),
    "/console/?q=" + "x" * 10_000: (200, []),
    f"/console/{quote(SCRIPT, safe='')}": (404, ["no such page"]),
    "/console/models/nobody": (404, ["no model named"]),
    f"/console/models/{quote(SCRIPT, safe='')}": (404, [ESCAPED]),
    "/console/models/..%2f..%2fetc%2fpasswd": (404, ["no model named"]),
    "/console/models/%00": (404, ["no model named"]),
    "/console/models/%ff%fe": (404, ["no model named"]),
    "/console/models/" + "n" * 10_000: (404, ["no model named"]),
    f"/console/models/{PREY}?version={quote(SCRIPT)}": (404, [ESCAPED]),
    f"/console/models/{PREY}?version=-1": (404, ["no version"]),
    f"/console/models/{PREY}?version={'9' * 60}": (404, ["no version"]),
    "/console/models/../../etc/passwd": (404, ["no such page"]),
    f"/console/jobs/{quote(SCRIPT, safe='')}": (404, [ESCAPED]),
    "/console/jobs/%27%20OR%201=1": (404, ["no job"]),
    "/console/icon.svg/..": (404, ["no such page"]),
    "/console/..%2ftemplates": (404, ["no such page"]),
    "/console/console.css%00": (404, ["no such page"]),
    f"/console/schedules/{PREY}/1/-1": (404, []),
    f"/console/schedules/{PREY}/1/x": (400, ["not a number"]),
    f"/console/schedules/{PREY}/1/{'9' * 60}": (400, ["not a number"]),
    f"/console/schedules/{PREY}/1/%D9%A1": (400, ["not a number"]),
    f"/console/schedules/{PREY}/x/1": (404, ["no version"]),
    f"{SCHEDULE}?zoom=-1": (400, ["the zoom is one of"]),
    f"{SCHEDULE}?zoom={'9' * 60}": (400, ["not a number"]),
    f"{SCHEDULE}?block={quote(SCRIPT)}": (400, [ESCAPED]),
    f"{SCHEDULE}?block=-1": (400, ["no block -1"]),
    f"{SCHEDULE}?block=99999999": (400, ["no block 99999999"]),
    f"{SCHEDULE}?device={quote(SCRIPT)}": (404, [ESCAPED]),
    f"{SCHEDULE}/svg?device=..%2f..%2fx": (404, ["../../x"]),
    f"{SCHEDULE}/exe": (404, ["no such page"]),
    f"/console/compare/{PREY}/1/1/{quote(SCRIPT, safe='')}": (400, [ESCAPED]),
}
"""What is asked for by GET, the status, and what the page shows."""

FORMS: Mapping[str, tuple[str, str, int, Sequence[str]]] = {
    "a wrong token": ("sign-in", "token=wrong", 403, ["not the admin token"]),
    "markup for a token": ("sign-in", f"token={quote(SCRIPT)}", 403, ["not the admin token"]),
    "no token": ("sign-in", "", 403, ["not the admin token"]),
    "a token of 9,000": ("sign-in", "token=" + "t" * 9000, 413, ["at most 8192 bytes"]),
    "4,000 fields": ("sign-in", "a&" * 4000, 403, ["not the admin token"]),
    "an action of nowhere": ("models/x/1/explode", "", 404, ["no such action"]),
    "an action without a name": ("models//1/delete", "", 403, ["Sign in"]),
    "deleting without signing in": (f"models/{PREY}/1/delete", "", 403, ["Sign in"]),
    "cancelling without signing in": ("jobs/..%2fx/cancel", "", 403, ["Sign in"]),
    "measuring without signing in": (f"models/{PREY}/1/profile", "", 403, ["Sign in"]),
}
"""Path below ``/console/``, form, status and what the page shows; few wrong tokens fit a minute."""

SIGNED_IN: Mapping[str, tuple[str, int, Sequence[str]]] = {
    "deleting nobody": ("models/nobody/1/delete", 404, ["no model named"]),
    "deleting version x": (f"models/{PREY}/x/delete", 404, ["no version"]),
    "deleting a path": ("models/..%2f..%2f/1/delete", 404, ["no model named"]),
    "deleting markup": (f"models/{quote(SCRIPT, safe='')}/1/delete", 404, [ESCAPED]),
    "measuring version -1": (f"models/{PREY}/-1/profile", 404, ["no version"]),
    "cancelling no job": ("jobs/%27%20OR%201=1/cancel", 404, ["no job"]),
    "cancelling a NUL": ("jobs/%00/cancel", 404, ["no job"]),
}
"""The same for one who has signed in."""

REGISTRATIONS: Mapping[str, tuple[str, int, Sequence[str]]] = {
    "nothing": ("", 400, ["begins with a line"]),
    "a line without an end": ("x" * 300_000, 400, ["begins with a line"]),
    "no JSON": ("{\n", 400, ["no JSON object"]),
    "a list": ("[]\n", 400, ["no JSON object"]),
    "numbers for texts": ('{"name": 1}\n', 400, ["must be a string"]),
    "no file": ('{"name": "x"}\n', 400, ["choose the model file"]),
    "a file without a size": ('{"files": [{"name": "a"}]}\n', 400, ["a 'size'"]),
    "a size below zero": ('{"files": [{"name": "a", "size": -1}]}\n', 400, ["a 'size'"]),
    "a size of 2^49": (
        f'{{"name": "x", "files": [{{"name": "a", "size": {2**49}}}]}}\n',
        *(400, ["the upload is larger than"]),
    ),
    "a path for a name": (
        '{"name": "../x", "files": [{"name": "a", "size": 1}]}\n',
        *(400, ["model name"]),
    ),
    "fewer bytes than it says": (
        '{"name": "x", "files": [{"name": "a", "size": 9}]}\n\b',
        *(400, ["ends before its files"]),
    ),
    "a file of GGUF": (
        '{"name": "x", "files": [{"name": "a", "size": 4}], "check": true}\nGGUF',
        *(400, ["not a model"]),
    ),
}
"""Bodies of a registration; none makes a job."""

COOKIES = ("", "=", ";" * 4000, "braid-console=" + "x" * 9000, 'braid-console="\\000"', "\t=\t")


def requests() -> Iterator[tuple[str, HttpRequest]]:
    for path, (status, words) in PAGES.items():
        yield f"page {path[:70]}", get(path, status, words)
    for what, (path, form, status, told) in FORMS.items():
        yield f"form: {what}", post(f"/console/{path}", form, status, told)
    for what, (form, status, told) in REGISTRATIONS.items():
        yield f"registration: {what}", post("/console/register", form, status, told)
    for cookie in COOKIES:
        yield f"cookie {cookie[:20]!r}", get("/console/", 200, Cookie=cookie)
    yield "another host", get("/console/", 421, ["not called 'evil.example'"], Host="evil.example")
    for what, headers in (
        ("another site", {"Origin": "https://evil.example"}),
        ("no site", {"Origin": "null"}),
        ("a broken origin", {"Origin": "http://[x"}),
        ("a page elsewhere", {"Sec_Fetch_Site": "cross-site"}),
    ):
        told = ["does not come from a page here"]
        yield f"form of {what}", post("/console/sign-out", "", 403, told, **headers)
    chunked = b"POST /console/sign-in HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    yield "form in chunks", HttpRequest(chunked, 411)


def signed_in(cookie: str) -> Iterator[tuple[str, HttpRequest]]:
    """Yield the cases of one who has signed in."""
    for what, (path, status, words) in SIGNED_IN.items():
        yield what, post(f"/console/{path}", "", status, words, Cookie=cookie)
