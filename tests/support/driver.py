"""A browser that looks at a running server: the one of the match tests, with pages by address, typing and files."""

from __future__ import annotations

import base64
import contextlib
import time

from support import browser as browsers
from support.browser import ELEMENT

KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Space": " "}
PHONE = (360, 740)
DESKTOP = (1280, 900)
STANDS = "document.querySelector('main h1') && !document.querySelector('main').hasAttribute('aria-busy')"

missing = browsers.missing


class Browser(browsers.Browser):
    origin = ""

    def go(self, path):
        """Opens the page, and waits until it stands."""
        self.open(self.origin + path)
        self.until(STANDS)

    def until(self, expression, timeout_s=10.0):
        """The first value of the expression that is true."""
        end = time.monotonic() + timeout_s
        while not (value := self.js(expression)):
            assert time.monotonic() < end, f"never true: {expression}\n{self.js('document.body.innerText')[:2000]}"
            time.sleep(0.02)
        return value

    def until_text(self, text, selector="main", timeout_s=10.0):
        self.until(f"(document.querySelector({selector!r})?.innerText ?? '').includes({text!r})", timeout_s)

    def type(self, selector, text):
        """Into a file input: the path."""
        found = self._post("/element", using="css selector", value=selector)[ELEMENT]
        self._post(f"/element/{found}/value", text=text)

    def clear(self, selector):
        found = self._post("/element", using="css selector", value=selector)[ELEMENT]
        self._post(f"/element/{found}/clear")

    def press(self, *keys):
        super().press(*(KEYS.get(key, key) for key in keys))

    def button(self, text, within="body"):
        """Clicks the first button, or link, with that text."""
        script = (
            "const [text, within] = arguments;"
            "return [...document.querySelectorAll(`${within} button, ${within} a`)].find("
            "one => one.innerText.trim() === text && one.getClientRects().length)"
        )
        found = self._post("/execute/sync", script=script, args=[text, within])
        assert found, f"no button {text!r} in:\n{self.js('document.body.innerText')[:2000]}"
        self._post(f"/element/{found[ELEMENT]}/click")

    def confirm(self, text):
        """In the question that a button asks."""
        self.until("document.querySelector('dialog[open]')")
        self.button(text, "dialog")

    def media(self, **features):
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", features=named)

    def drop(self, selector, files):
        """What a hand does that lets files fall on an element."""
        script = (
            "const [selector, files] = arguments; const data = new DataTransfer();"
            "for (const [name, text] of Object.entries(files)) data.items.add(new File([text], name));"
            "const at = document.querySelector(selector);"
            "for (const kind of ['dragenter', 'dragover', 'drop'])"
            " at.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));"
        )
        self._post("/execute/sync", script=script, args=[selector, files])

    def forget(self):
        """Another visitor: no cookie, nothing kept."""
        self.cdp("Network.clearBrowserCookies")
        self.cdp("Storage.clearDataForOrigin", origin=self.origin, storageTypes="local_storage")

    def shot(self, path):
        width, height = self.js("[window.innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def complaints(self):
        """Errors and warnings of the console since the page was opened; violations of the policy are among them."""
        return [entry["message"] for entry in self.logs("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def foreign(self):
        """Requests that left for anywhere else."""
        own = (self.origin + "/", f"blob:{self.origin}/", "data:", "about:")
        return [url for url in self.requests() if not url.startswith(own)]

    def too_wide(self):
        """Elements that make the page wider than the window."""
        return self.js(
            "document.documentElement.scrollWidth <= window.innerWidth ? [] : [...document.querySelectorAll('body *')]"
            ".filter(one => one.getBoundingClientRect().right > window.innerWidth + 1 && !one.closest('.scroll, pre'))"
            ".map(one => `${one.tagName}.${one.className}`).slice(0, 5)"
        )


@contextlib.contextmanager
def started():
    with browsers.started() as plain:
        plain.__class__ = Browser
        yield plain
