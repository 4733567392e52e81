"""A Docker daemon of the tests' own, without a network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class DockerDaemon:
    address: str

    def command(self, *arguments: str) -> list[str]:
        return ["docker", "-H", self.address, *arguments]

    def docker(self, *arguments: str, input: bytes = b"", check: bool = True, timeout_s: float = 120) -> str:
        done = subprocess.run(
            self.command(*arguments), input=input, capture_output=True, timeout=timeout_s, check=False
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@contextlib.contextmanager
def docker_daemon(folder: Path, *, storage: str = "vfs") -> Generator[DockerDaemon]:
    """Skips the test where no daemon can be started. `storage`: vfs works on every file system, and copies each layer
    as a whole; overlay2 does neither."""
    if os.geteuid() != 0:
        pytest.skip("host: not root")
    for program in ("dockerd", "docker"):
        if not shutil.which(program):
            pytest.skip(f"no {program}: apt-get install docker.io, and docker-cli where Debian has it")
    address = f"unix://{folder}/socket"
    with open(folder / "log", "wb") as log:
        options = [
            f"--storage-driver={storage}",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "-H",
            address,
        ]
        places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        daemon = subprocess.Popen(["dockerd", *options, *places], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while subprocess.run(["docker", "-H", address, "version"], capture_output=True, check=False).returncode:
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.skip(f"host: dockerd does not start: {(folder / 'log').read_text()[-500:]}")
            time.sleep(0.2)
        yield DockerDaemon(address)
    finally:
        daemon.terminate()
        daemon.wait(30)
