"""The part of Docker's HTTP API that boxes need, over the daemon's Unix socket. The daemon is trusted."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from harena.backends.docker import variables
from harena.errors import HarenaError, IsolationUnavailable

CALL_S = 120.0
MAX_ANSWER = 64 << 20


class DockerError(HarenaError):
    """The daemon refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"Docker: {message}")
        self.status = status
        self.message = message


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Docker:
    """Requests have no version, so every daemon serves them in its own."""

    def __init__(self) -> None:
        self.address = variables.docker_host()
        if not self.address.startswith("unix://"):
            raise IsolationUnavailable(
                f"DOCKER_HOST={self.address}: boxes need a daemon on this machine, since files are mounted",
                fix="set DOCKER_HOST=unix:///var/run/docker.sock, or unset it",
            )
        self._path = self.address.removeprefix("unix://")

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, *, timeout_s: float = CALL_S
    ) -> Any:
        """Send a request. Returns the JSON of the answer, None if there is none. Raises DockerError if it is
        refused."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        connection = _Connection(self._path, timeout_s)
        try:
            connection.request(method, path, data, {"Content-Type": kind, "Connection": "close"})
            answer = connection.getresponse()
            text = answer.read(MAX_ANSWER)
        except TimeoutError:
            raise DockerError(0, f"no answer to {method} {path.partition('?')[0]} in {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise IsolationUnavailable(
                f"no Docker daemon answers at {self.address}: {error}",
                fix="start it (systemctl start docker), let this user reach its socket (group docker), or set "
                "DOCKER_HOST=unix://PATH",
            ) from None
        finally:
            connection.close()
        try:
            found = json.loads(text.splitlines()[-1]) if text.strip() else None
        except ValueError:
            found = None
        if answer.status >= 400:
            message = found.get("message", "") if isinstance(found, dict) else ""  # pyright: ignore
            raise DockerError(answer.status, str(message or answer.reason).strip())  # pyright: ignore
        return found

    def info(self) -> dict[str, Any]:
        return self.call("GET", "/info")

    def image(self, name: str) -> dict[str, Any] | None:
        try:
            return self.call("GET", f"/images/{quote(name)}/json")
        except DockerError as error:
            if error.status != 404:
                raise
            return None

    def import_image(self, tar: bytes, repository: str, tag: str) -> None:
        self.call("POST", "/images/create?" + urlencode({"fromSrc": "-", "repo": repository, "tag": tag}), tar)

    def create(self, name: str, settings: Mapping[str, Any]) -> str:
        return self.call("POST", f"/containers/create?name={quote(name)}", settings)["Id"]

    def start(self, container: str) -> None:
        self.call("POST", f"/containers/{container}/start")

    def running(self, container: str) -> bool:
        try:
            return bool(self.call("GET", f"/containers/{container}/json")["State"]["Running"])
        except DockerError as error:
            if error.status != 404:
                raise
            return False

    def update(self, container: str, settings: Mapping[str, Any]) -> None:
        self.call("POST", f"/containers/{container}/update", settings)

    def remove(self, container: str) -> None:
        """End a container and return when it is gone."""
        with contextlib.suppress(HarenaError):  # it is gone, the daemon removes it already, or there is no daemon
            self.call("DELETE", f"/containers/{container}?force=1&v=1")
        with contextlib.suppress(HarenaError):
            self.call("POST", f"/containers/{container}/wait?condition=removed")

    def labelled(self, label: str) -> list[dict[str, Any]]:
        return self.call("GET", "/containers/json?" + urlencode({"all": 1, "filters": json.dumps({"label": [label]})}))
