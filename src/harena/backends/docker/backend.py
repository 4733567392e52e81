"""Makes boxes in containers, and removes containers of processes that were killed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harena.backends.docker import container, inside
from harena.backends.docker.api import Docker, DockerError
from harena.backends.docker.container import Bind, Daemon, DockerImage
from harena.errors import BoxLost, IsolationUnavailable, Retry, StartTimeout, Unsupported, WireError
from harena.node import client
from harena.node.client import NodeBox
from harena.node.connection import Connection
from harena.node.link import Link, SocketStream
from harena.sandbox.backend import Capabilities
from harena.sandbox.spec import Limits, Spec, default_isolation

OWNER, PLACE = "harena.owner", "harena.place"
"""Labels of a container: the process that made it, and where the number of that process means anything."""
LOOK_S = 0.25
START_S = 60.0


class DockerBackend:
    """A daemon is looked for with the first box."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._capabilities: dict[str, Capabilities] = {}

    def capabilities(self) -> Capabilities:
        wanted = default_isolation()
        if wanted not in self._capabilities:
            box = self.create(Spec(isolation=wanted), limits=Limits(), start_s=START_S)
            try:
                self._capabilities[wanted] = box.capabilities()
            finally:
                box.close()
        return self._capabilities[wanted]

    def create(self, spec: Spec, *, limits: Limits, start_s: float) -> DockerBox:
        client.refuse_network(spec, "docker")
        if spec.isolation != "best":
            return self._create(spec, spec.isolation, limits, start_s)
        if self._obstacle is None:
            try:
                return self._create(spec, "full", limits, start_s)
            except IsolationUnavailable as error:
                made = self._create(spec, "restricted", limits, start_s)
                self._obstacle = error.missing  # else neither can be made, and the next box tries both again
                return made
        return self._create(spec, "restricted", limits, start_s)

    _obstacle: str | None = None

    def _create(self, spec: Spec, tier: str, limits: Limits, start_s: float) -> DockerBox:
        deadline = time.monotonic() + start_s
        user = self._daemon.user()
        read, binds = container.shown(spec, tier, user)
        image = self._places if spec.image is None else self._image(spec.image)
        if spec.image is not None:
            read = _with_environment(read, image.env)
        made = Container(self._docker, self._daemon, user, read, tier, limits, image, binds, deadline)
        try:
            return made.box(read, tier, limits, max(1.0, deadline - time.monotonic()))
        except BaseException:
            made.close()
            raise

    # ---- the daemon, asked once ----

    @functools.cached_property
    def _docker(self) -> Docker:
        docker = Docker()
        reap(docker)
        return docker

    @functools.cached_property
    def _daemon(self) -> Daemon:
        return Daemon.of(self._docker.info())

    @property
    def _places(self) -> DockerImage:
        """The image of boxes without one: places for mounts, imported when the daemon does not have it."""
        tar, tag = container.places()
        name = f"{container.REPOSITORY}:{tag}"
        with self._lock:
            if self._docker.image(name) is None:
                self._docker.import_image(tar, container.REPOSITORY, tag)
        return DockerImage(name)

    def _image(self, image: str) -> DockerImage:
        found = self._docker.image(image)
        if found is None:
            raise Unsupported(f"image {image}: Docker does not have it: docker pull {image}")
        config: dict[str, Any] = found.get("Config") or {}
        env, volumes = config.get("Env") or (), config.get("Volumes") or ()
        return DockerImage(str(found["Id"]), tuple(map(str, env)), tuple(sorted(map(str, volumes))))


class Container:
    """A container and the connection to its node. It ends with its last box."""

    def __init__(
        self,
        docker: Docker,
        daemon: Daemon,
        user: int,
        spec: Spec,
        tier: str,
        limits: Limits,
        image: DockerImage,
        binds: list[Bind],
        deadline: float,
    ) -> None:
        self._docker = docker
        self._spec = spec
        self._lock = threading.Lock()
        self._bounds = container.bounds(limits, spec)
        self._boxes = 0
        folder = Path(tempfile.mkdtemp(prefix="harena-docker-"))
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                path = folder / "socket"
                listener.bind(str(path))
                path.chmod(0o666)  # for the container's user; nobody else can enter the folder
                listener.listen(1)
                settings = container.settings(
                    spec,
                    limits,
                    tier=tier,
                    daemon=daemon,
                    user=user,
                    image=image,
                    socket=str(path),
                    binds=binds,
                    labels={OWNER: owner(os.getpid()), PLACE: place()},
                )
                self.id = _created(docker, settings, spec)
                try:
                    _started(docker, self.id, spec)
                    sock = self._accept(listener, deadline)
                except BaseException:
                    docker.remove(self.id)
                    raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.node = Connection(Link.to_node(SocketStream(sock)), functools.partial(docker.remove, self.id))

    def _accept(self, listener: socket.socket, deadline: float) -> socket.socket:
        """The one connection of the node. Nothing else runs in the container before it."""
        listener.settimeout(LOOK_S)
        while True:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise StartTimeout("the container was not ready within start_s") from None
                if not self._docker.running(self.id):
                    raise IsolationUnavailable(
                        "the container ended before its box was made",
                        fix=f"try its Python: docker run --rm -it IMAGE {container.interpreter(self._spec)} -I -c 1",
                    ) from None
            else:
                sock.setblocking(True)
                return sock

    def box(self, spec: Spec, tier: str, limits: Limits, start_s: float) -> DockerBox:
        handle, id, isolation = client.create(self.node, spec, limits, start_s)
        if isolation != tier:
            raise WireError(f"a box of the tier {isolation} was made where {tier} was asked for")
        return DockerBox(self, handle, id, tier)

    def admit(self, limits: Limits) -> None:
        """Raise the container's limits for an execution that has higher ones than those before."""
        wanted = container.bounds(limits, self._spec)
        if all(wanted[name] <= self._bounds[name] for name in wanted):
            return
        with self._lock:
            wanted = {name: max(value, self._bounds[name]) for name, value in wanted.items()}
            try:
                self._docker.update(self.id, wanted)
            except DockerError as error:
                raise BoxLost(f"the limits of the container could not be raised: {error}", retry=Retry.SAFE) from None
            self._bounds = wanted

    def enter(self) -> None:
        with self._lock:
            self._boxes += 1

    def leave(self) -> None:
        with self._lock:
            self._boxes -= 1
            last = self._boxes == 0
        if last:
            self.close()

    def close(self) -> None:
        self.node.give_up("the box is closed")
        self._docker.remove(self.id)


class DockerBox(NodeBox):
    backend = "docker"

    def __init__(self, container: Container, handle: int, id: str, isolation: str) -> None:
        super().__init__(container.node, handle, id, isolation, container.admit)
        self._container = container
        self._open = True
        self._closing = threading.Lock()
        container.enter()

    def capabilities(self) -> Capabilities:
        return client.capabilities(self._container.node)

    def _forked(self, handle: int, id: str) -> DockerBox:
        return DockerBox(self._container, handle, id, self.isolation)

    def close(self) -> None:
        super().close()
        with self._closing:
            was_open, self._open = self._open, False
        if was_open:
            self._container.leave()


def _with_environment(spec: Spec, env: tuple[str, ...]) -> Spec:
    given = dict(pair.split("=", 1) for pair in env if "=" in pair and not pair.startswith("="))
    return dataclasses.replace(spec, env={**given, **spec.env})


def _created(docker: Docker, settings: dict[str, object], spec: Spec) -> str:
    try:
        return docker.create(f"harena-{secrets.token_hex(8)}", settings)
    except DockerError as error:
        raise _refused(error, spec) from None


def _started(docker: Docker, container: str, spec: Spec) -> None:
    try:
        docker.start(container)
    except DockerError as error:
        raise _refused(error, spec) from None


def _refused(error: DockerError, spec: Spec) -> Exception:
    if spec.image is not None and ("executable file not found" in error.message or "no such file" in error.message):
        minimum = ".".join(map(str, inside.MINIMUM))
        return Unsupported(
            f"image {spec.image} has no python3 in its PATH: a box of the backend docker needs Python {minimum} or "
            "newer in the image; the backend local makes boxes from images without Python"
        )
    return IsolationUnavailable(f"Docker does not make the container: {error.message}", fix="see the daemon's log")


# ---- containers of processes that were killed ----


def owner(pid: int) -> str:
    """A process, also after its number was given to another one."""
    try:
        return f"{pid}.{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return "gone"


def place() -> str:
    """Where process numbers are ours: this boot, this pid namespace, this user, who sees the own processes at least."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}.{os.geteuid()}"


def reap(docker: Docker) -> int:
    """Remove containers whose process is gone. They end by themselves when it ends; this is for those that could not,
    because the daemon was stopped or their node was."""
    reaped = 0
    for found in docker.labelled(f"{PLACE}={place()}"):
        made_by = str(found["Labels"].get(OWNER, ""))
        if owner(int(made_by.partition(".")[0] or 0)) != made_by:
            with contextlib.suppress(DockerError):
                docker.remove(found["Id"])
            reaped += 1
    return reaped
