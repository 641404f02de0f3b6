"""A real Chromium, driven over the DevTools protocol: as little of it as the tests need."""

import base64
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import websocket

from tests.clock import until
from tests.deploy.places import program
from tests.service.server_process import ServerProcess

SECONDS = 120.0  # limit of every wait; nothing takes that long unless it is broken


NAVIGATED = {"Inspected target navigated or closed", "Execution context was destroyed."}


class Navigated(Exception):
    """The page that was asked went away before it answered."""


class Browser:
    """One tab. Collects what a person would see in the console of the developer tools."""

    def __init__(self, debugger: str) -> None:
        self._socket = websocket.create_connection(debugger, timeout=SECONDS, suppress_origin=True)
        self._next = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """One command; events that come before its answer are looked at."""
        self._next += 1
        self._socket.send(json.dumps({"id": self._next, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._next:
                if message.get("error", {}).get("message") in NAVIGATED:
                    raise Navigated(method)
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not re.match(r"http://127\.0\.0\.1[:/]|data:", url):
                self.complaints.append(f"asked for {url}")

    def run(self, script: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Go to an address and wait until it is shown."""
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def until(self, script: str, seconds: float = SECONDS) -> Any:
        """Wait until an expression is true, in this page or in one that takes its place."""

        def look() -> Any:
            try:
                return self.run(script)
            except Navigated:
                return None

        return until(look, seconds, lambda: self.run("document.body.innerText"))

    @property
    def text(self) -> str:
        """What the page shows."""
        return str(self.run("document.querySelector('main').innerText"))

    def follow(self, text: str) -> None:
        """Click the first link or button with this text, and wait for the next page."""
        self.run("window.stale = true")
        found = self.run(
            "(() => {const e = [...document.querySelectorAll('a,button')].find("
            f"e => e.textContent.trim() === {json.dumps(text)}); if (e) e.click(); return !!e}})()"
        )
        assert found, f"no {text!r} on this page: {self.text}"
        self.until("!window.stale && document.readyState === 'complete'")

    def choose(self, selector: str, *files: Path) -> None:
        """Give files to a field, as its dialogue does."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def press(self, key: str, text: str = "") -> None:
        """One key, as a keyboard sends it."""
        codes = {"Tab": 9, "Enter": 13}
        event: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        if key == "Enter":
            text = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def show(self, width: int, *, dark: bool) -> None:
        """Take a window width in CSS pixels, a phone's where it is small, and a theme."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def show_as_usual(self) -> None:
        """Undo ``show``."""
        self.call("Emulation.setEmulatedMedia", features=[])
        self.call("Emulation.clearDeviceMetricsOverride")

    def screenshot(self, path: Path, *, dark: bool = False, width: int = 1280) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.clearDeviceMetricsOverride")
        height = min(int(self.run("document.documentElement.scrollHeight")), 2000)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=max(height, 500), deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        picture = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(picture["data"]))


def address(server: ServerProcess, path: str = "") -> str:
    return f"http://{server.http_address}/console/{path}"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is gone at the end; skips the test where none is installed."""
    binary = program("chromium", "chromium")
    with tempfile.TemporaryDirectory(prefix="braid-chromium-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [
                *(binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-dev-shm-usage", "--disable-background-networking"),
                *("--remote-debugging-port=0", f"--user-data-dir={home}", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = _port(Path(home) / "DevToolsActivePort")
            with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=120) as answer:
                (page,) = [each for each in json.load(answer) if each["type"] == "page"]
            browser = Browser(page["webSocketDebuggerUrl"])
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(file: Path) -> int:
    text = until(lambda: file.exists() and file.read_text(), SECONDS)
    return int(str(text).split()[0])
