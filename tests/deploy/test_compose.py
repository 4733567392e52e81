"""The stack of compose.yaml, started: docker/Dockerfile is built, and an agent is ranked through page, API, worker,
PostgreSQL and Redis, with Prometheus watching.

The base images are made of the Debian packages that are installed here, since no registry is within reach. Grafana and
Redis Commander cannot be made so: tests/unit/test_deploy.py checks what is configured for them. Debian's docker-compose
1.29 does not know `systempaths=unconfined`, which the worker's boxes need, so Docker itself starts the worker with the
options of the file.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support import debian_images, podimage, servers, wheelhouse
from support.docker_daemon import DockerDaemon, docker_daemon

pytestmark = [
    pytest.mark.services,
    pytest.mark.serial,
    pytest.mark.docker,
    pytest.mark.soak,  # it takes minutes where the machine is busy
    pytest.mark.timeout(1200),
]

ROOT = Path(__file__).parents[2]
SOON_S = 300.0
ELSEWHERE = ("grafana", "redis-commander")
SECRETS = {"DB_PASSWORD": "only-for-tests", "HARENA_METRICS_TOKEN": "only-for-tests-token"}
SMALL = ("coreutils", "dash", "libc-bin", "passwd", "grep", "sed", "findutils", "util-linux")
PYTHON = ("apt", "python3", "python3-venv", "python3-pip", "gcc", "libc6-dev", "libstdc++6")
EXTRAS = ("arena", "postgres", "redis")
AGENT = b"def act(observation):\n    return int(observation[2] + observation[3] > 0)\n"
PATH = "ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

POSTGRES = b"""#!/bin/sh
# What the official image does with its variables, as far as compose.yaml uses them.
set -eu
data=/var/lib/postgresql/data
if [ ! -s $data/PG_VERSION ]; then
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    initdb -D $data -U "$POSTGRES_USER" --pwfile=/tmp/password -A scram-sha-256 $POSTGRES_INITDB_ARGS
    rm /tmp/password
    echo "host all all all scram-sha-256" >>$data/pg_hba.conf
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D $data -E postgres
fi
exec postgres -D $data -c listen_addresses='*' -k /tmp
"""
POSTGRES_FILE = b"""
FROM local/postgres
ENV PGHOST=/tmp
RUN mkdir -p /var/lib/postgresql/data && chown -R 999:999 /var/lib/postgresql && chmod 700 /var/lib/postgresql/data
USER postgres
ENTRYPOINT ["/entrypoint"]
"""
# The official image is built without the protected mode, too: who reaches it is decided by the network.
REDIS = b'#!/bin/sh\nexec "$@" --protected-mode no\n'


def make_images(daemon: DockerDaemon, folder: Path) -> None:
    def load(tag: str, packages: tuple[str, ...], more: dict[str, bytes], *changes: str) -> None:
        try:
            debian_images.write_root(folder / "root.tar", (*packages, *SMALL), more)
        except LookupError as error:
            pytest.skip(str(error))
        words = [word for change in (PATH, *changes) for word in ("--change", change)]
        daemon.docker("import", *words, str(folder / "root.tar"), tag, timeout_s=SOON_S)
        (folder / "root.tar").unlink()

    users = b"root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/sh\n"
    load("local/postgres", ("postgresql-15",), {"entrypoint": POSTGRES, "etc/passwd": users})
    daemon.docker("build", "--tag", image_of("postgres"), "-", input=POSTGRES_FILE, timeout_s=SOON_S)
    load(image_of("redis"), ("redis-server",), {"entrypoint": REDIS}, 'ENTRYPOINT ["/entrypoint"]')
    load(image_of("prometheus"), ("prometheus",), {})
    base = next(line.split()[1] for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines() if "FROM" in line)
    python = {"usr/local/bin/python": b'#!/bin/sh\nexec python3 "$@"\n'}
    load(base, PYTHON, python | wheels(folder), "ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels")


def wheels(folder: Path) -> dict[str, bytes]:
    """What Harena needs in the image, as it is installed here."""
    (folder / "wheels").mkdir()
    for name in ("pip", "setuptools"):
        wheelhouse.pack(importlib.metadata.distribution(name), folder / "wheels")
    for distribution in podimage.closure("harena", EXTRAS):
        wheelhouse.pack(distribution, folder / "wheels")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # Redis's client needs it before Python 3.11.3
        wheelhouse.pack(importlib.metadata.distribution("async-timeout"), folder / "wheels")
    return {f"wheels/{path.name}": path.read_bytes() for path in (folder / "wheels").iterdir()}


def image_of(service: str) -> str:
    return COMPOSE["services"][service]["image"]


COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


class Stack:
    def __init__(self, daemon: DockerDaemon, folder: Path) -> None:
        self.daemon = daemon
        self.project = f"harena{os.getpid()}"
        self.ports: dict[int, int] = {}
        changed = yaml.safe_load((ROOT / "compose.yaml").read_text())
        for name in (*ELSEWHERE, "worker"):
            del changed["services"][name]
        for service in changed["services"].values():
            service["ports"] = [self._free(port) for port in service.get("ports", [])]
        self.file = folder / "compose.yaml"
        self.file.write_text(yaml.safe_dump(changed))

    def _free(self, port: str) -> str:
        """The same port of the container on a free one of this machine."""
        address, _, inside = port.split(":")
        self.ports[int(inside)] = servers.free_port()
        return f"{address}:{self.ports[int(inside)]}:{inside}"

    def compose(self, *words: str) -> None:
        command = ["docker-compose", "--project-name", self.project, "--file", str(self.file)]
        command += ["--project-directory", str(ROOT), *words]
        environ = {**os.environ, **SECRETS, "DOCKER_HOST": self.daemon.address, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url(8000)}/health", timeout=30, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def start_worker(self) -> None:
        service = COMPOSE["services"]["worker"]
        words = ["run", "--detach", "--name", f"{self.project}-worker", "--network", f"{self.project}_inside"]
        words += ["--volume", f"{self.project}_arena:/data"]
        for capability in service["cap_drop"]:
            words += ["--cap-drop", capability]
        for option in service["security_opt"]:
            words += ["--security-opt", option.replace("=./", f"={ROOT}/")]
        url = f"postgresql://harena:{SECRETS['DB_PASSWORD']}@postgres:5432/arena"
        for name, value in {"DATABASE_URL": url, "REDIS_URL": service["environment"]["REDIS_URL"]}.items():
            words += ["--env", f"{name}={value}"]
        self.daemon.docker(*words, service["image"], *service["command"])

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def url(self, inside: int) -> str:
        return f"http://127.0.0.1:{self.ports[inside]}"


@pytest.fixture
def stack() -> Iterator[Stack]:
    if not shutil.which("docker-compose"):
        pytest.skip("no docker-compose: apt-get install docker-compose")
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True)))
        daemon = opened.enter_context(docker_daemon(folder, storage="overlay2"))
        make_images(daemon, folder)
        stack = Stack(daemon, folder)
        try:
            stack.compose("up", "--detach", "--build")
            until(stack.healthy)  # as the worker's depends_on says
            stack.start_worker()
            yield stack
        finally:
            daemon.docker("rm", "--force", f"{stack.project}-worker", check=False)
            stack.compose("down", "--volumes", "--timeout", "5")


def until(look: Any) -> Any:
    end = time.monotonic() + SOON_S
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.5)
    return found


def test_an_agent_is_ranked_through_the_stack_of_compose(stack: Stack) -> None:
    key = stack.daemon.docker("exec", stack.container("arena"), "cat", "/data/host.key").strip()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(headers=headers, timeout=60, trust_env=False) as client:
        api = stack.url(8000)
        assert client.get(f"{api}/health").json()["status"] == "healthy"
        fields = {"env_id": "CartPole-v1", "algorithm": "through compose"}
        sent = client.post(f"{api}/api/submit/", files={"file": ("agent.py", AGENT)}, data=fields).json()

        def ended() -> dict[str, Any] | None:
            found = client.get(f"{api}/api/results/{sent['id']}").json()
            assert found["status"] != "failed", found
            return found if found["status"] == "completed" else None

        assert until(ended)["score"] > 0
        board = client.get(f"{api}/api/leaderboard/", params={"env_id": "CartPole-v1"}).json()
        assert "through compose" in {entry["algorithm"] for entry in board}
        page = client.get(f"{stack.url(7860)}/")
        assert (page.status_code, "text/html" in page.headers["content-type"]) == (200, True)

        def scraped() -> bool:
            found = client.get(f"{stack.url(9090)}/api/v1/query", params={"query": 'up{job="harena"} == 1'}).json()
            return bool(found["data"]["result"])

        until(scraped)
