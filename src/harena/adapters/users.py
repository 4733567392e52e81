"""Commands as another user of an image. Root of a box from an image becomes that user; any other box has one user."""

from __future__ import annotations

from harena.errors import Unsupported
from harena.sandbox.aio import AsyncSandbox

SWITCHES = ("/usr/sbin/runuser", "/sbin/runuser", "/bin/runuser")
"""Absolute, because the PATH of an image may be the guest's to change."""
FIND = 'for path; do test -x "$path" && echo "$path" && exit; done'


class UserSwitch:
    def __init__(self, box: AsyncSandbox, image: str | None) -> None:
        self._box, self._image = box, image
        self._user = self._uid = ""
        self._switch: str | None = None

    async def wrapped(self, user: str, argv: list[str]) -> list[str]:
        """Return the command that runs `argv` as this user, by name or number. Raises Unsupported."""
        if not self._user:
            self._user = await self._said(["id", "-un"])
            self._uid = await self._said(["id", "-u"])
        if user in (self._user, self._uid):
            return argv
        if self._image is None or self._uid != "0":
            raise Unsupported(
                f"box {self._box.id} runs everything as {self._user or 'one user'}, not as {user!r:.80}; only root of "
                "a box from an image can become another user"
            )
        if self._switch is None:
            self._switch = await self._said(["/bin/sh", "-c", FIND, "sh", *SWITCHES])
        if not self._switch:
            raise Unsupported(f"the image {self._image} has no runuser (util-linux), which becomes {user!r:.80}")
        if user.isdigit():
            user = (await self._said(["/bin/sh", "-c", 'getent passwd "$1" | cut -d: -f1', "sh", user])) or user
        return [self._switch, "-u", user, "--", *argv]

    async def _said(self, argv: list[str]) -> str:
        return (await self._box.exec(argv)).stdout.decode("utf-8", "replace").strip()
