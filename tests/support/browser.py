"""A headless Chromium for tests, driven over chromedriver's plain HTTP: no package needed. Each has a fresh profile."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
KEYS = {"ArrowLeft": "\ue012", "ArrowRight": "\ue014", "Home": "\ue011", "End": "\ue010", "Tab": "\ue004"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing() -> str:
    """Why there is none here; empty when there is."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (apt-get install chromium chromium-driver)" if absent else ""


class Browser:
    def __init__(self, port: int, profile: str) -> None:
        self._root = f"http://127.0.0.1:{port}"
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        logging = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logging}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def _post(self, path: str, **body: Any) -> Any:
        return self._call("POST", self._session + path, body)

    def cdp(self, command: str, **params: Any) -> Any:
        return self._post("/goog/cdp/execute", cmd=command, params=params)

    def open(self, page: Path | str) -> None:
        """A file, or a URL."""
        self.logs("browser"), self.logs("performance")  # what an earlier page left
        self._post("/url", url=page.as_uri() if isinstance(page, Path) else page)

    def js(self, expression: str) -> Any:
        return self._post("/execute/sync", script=f"return {expression}", args=[])

    def text(self, selector: str) -> str:
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText")

    def press(self, *keys: str) -> None:
        for key in keys:
            value = KEYS.get(key, key)
            strokes = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
            self._post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def click(self, selector: str) -> None:
        found = self._post("/element", using="css selector", value=selector)
        self._post(f"/element/{found[ELEMENT]}/click")

    def size(self, width: int, height: int) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path) -> None:
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def logs(self, kind: str) -> list[dict[str, Any]]:
        return self._post("/se/log", type=kind)

    def requests(self) -> list[str]:
        """The address of every request since the page was opened, the page itself among them."""
        events = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        self._call("DELETE", self._session)


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["chromedriver", "--port=0"]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            browser = Browser(_port(driver), profile)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
            driver.wait(10)
            assert driver.stdout is not None
            driver.stdout.close()


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        found = re.search(r"successfully on port (\d+)", line)
        if found:
            return int(found[1])
    raise RuntimeError("chromedriver ended before it said its port")
