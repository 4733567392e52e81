"""What an attacker would like to reach on the host, and whether it was reached."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harena.sandbox.doctor import probes
from harena.sandbox.doctor.probes import ProbeResult

HOST_NAMES = {"tcp": "TCP listener", "udp": "UDP listener", "abstract": "abstract sockets", "path": "unix socket"}


class Host:
    """Real targets on the host that an attacker would like to reach, and whether they were reached."""

    def __init__(self) -> None:
        self.mark = f"doctor{os.urandom(6).hex()}"
        self._stack = contextlib.ExitStack()
        self.unreachable: dict[str, str] = {}
        """Targets that the host itself cannot reach, with the reason. Probes that aim at them prove nothing."""

    def __enter__(self) -> Host:
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        # Not in /tmp: every box has its own, which would hide the secret whatever else is visible.
        shared = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="harena-doctor-", dir=shared)))
        folder.chmod(0o755)  # what hides it must be the box, and not a mode
        self.folder = folder
        self.secrets = [folder / "secret", *self._in_shared_memory()]
        for path in self.secrets:
            path.write_text(self.mark)
            path.chmod(0o644)
        self._stack.callback(lambda: [path.unlink(missing_ok=True) for path in self.secrets])
        inherited = self._stack.enter_context(self.secrets[0].open())
        os.set_inheritable(inherited.fileno(), True)
        os.environ[self.mark] = self.mark
        self._stack.callback(os.environ.pop, self.mark, None)
        self.tcp = self._bind(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = self._bind(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.stream = self._bind(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.mark}.stream")
        self.dgram = self._bind(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.mark}.dgram")
        self.path = self._bind(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        code = "import sys; sys.stdin.read()"  # it ends with its stdin, so with the doctor
        command = [sys.executable, "-I", "-S", "-c", code, self.mark]
        self.victim = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._stack.callback(self._end_victim)
        self._files = sorted(os.listdir(folder))
        for name, touched in self._targets().items():
            reached = touched() if name in {"victim", "secrets"} else self._reach(name)
            if reached:
                self.unreachable[name] = reached
        self.heard()

    def _in_shared_memory(self) -> list[Path]:
        return [Path("/dev/shm", self.mark)] if os.access("/dev/shm", os.W_OK) else []

    def _bind(self, family: int, kind: int, address: Any) -> socket.socket:
        sock = self._stack.enter_context(socket.socket(family, kind))
        sock.setblocking(False)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        return sock

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.communicate()

    def target(self) -> dict[str, Any]:
        return {
            "mark": self.mark,
            "secrets": [str(path) for path in self.secrets],
            "tcp": self.tcp.getsockname(),
            "udp": self.udp.getsockname(),
            "stream": f"{self.mark}.stream",
            "dgram": f"{self.mark}.dgram",
            "socket": str(self.folder / "socket"),
            "victim": self.victim.pid,
            "host": os.getpid(),
        }

    # ---- controls: the same targets, from the host ----

    def _sockets(self) -> dict[str, list[socket.socket]]:
        return {"tcp": [self.tcp], "udp": [self.udp], "abstract": [self.stream, self.dgram], "path": [self.path]}

    def _reach(self, name: str) -> str:
        for sock in self._sockets()[name]:
            with socket.socket(sock.family, sock.type) as client:
                client.settimeout(1)
                try:
                    client.connect(sock.getsockname())
                    client.send(b"control")
                except OSError as error:
                    return f"the host cannot reach its own {HOST_NAMES[name]}: {error}"
        return "" if self.heard(name) else f"the host's own {HOST_NAMES[name]} heard nothing from the host"

    def heard(self, name: str | None = None) -> list[str]:
        """Names of the listeners that were reached since the last call."""
        found: list[str] = []
        for key, sockets in self._sockets().items():
            for sock in sockets if name in {None, key} else ():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        if sock.type == socket.SOCK_STREAM:
                            sock.accept()[0].close()
                        else:
                            sock.recv(4096)
                        found.append(key)
        return found

    def _victim_touched(self) -> str:
        if self.victim.poll() is not None:
            return "a process of the host was ended"
        for _ in range(100):  # its name is there a moment after it is
            if self.mark.encode() in Path(f"/proc/{self.victim.pid}/cmdline").read_bytes():
                return ""
            time.sleep(0.01)
        return "the host does not see its own process"

    def _secrets_touched(self) -> str:
        if any(path.read_text() != self.mark for path in self.secrets):
            return "a file of the host was changed"
        return "" if sorted(os.listdir(self.folder)) == self._files else "a file was planted on the host"

    def _targets(self) -> dict[str, Callable[[], str]]:
        touched = {name: (lambda name=name: self._was_heard(name)) for name in HOST_NAMES}
        return {**touched, "victim": self._victim_touched, "secrets": self._secrets_touched}

    def _was_heard(self, name: str) -> str:
        return f"the host's {HOST_NAMES[name]} heard the box" if name in self.heard(name) else ""

    def reviewed(self, result: ProbeResult) -> ProbeResult:
        """Check the result that a probe reports against its target."""
        name = next((probe.target for probe in probes.PROBES if probe.name == result.name), "")
        if not name:
            return result
        wrong = self.unreachable.get(name) or self._targets()[name]()
        if wrong:
            return ProbeResult(name=result.name, held=False, detail=wrong)
        untouched = f"; the host's {HOST_NAMES[name]} heard nothing" if name in HOST_NAMES else ""
        return ProbeResult(
            name=result.name, held=result.held, detail=result.detail + (untouched if result.held else "")
        )
