"""A shell that stays: variables, functions, the working folder and background jobs live from one command to the next.

The shell is interactive and has a terminal, so that it controls jobs and an interrupt ends a command and not the shell.
A command's output does not pass through the terminal: each command writes to two files of its own in the box. All of it
comes from the guest: a command that forges its exit code or its output harms only the guest.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from harena.errors import BoxClosed, BoxError, BoxFileError, BoxFileNotFound, SpecError
from harena.sandbox.process import Process
from harena.sandbox.spec import Limits, Result, Usage, Verdict

SHELLS: tuple[tuple[str, ...], ...] = (("bash", "--noprofile", "--norc", "--noediting", "-i"), ("sh", "-i"))
"""What is tried, if the caller names no shell: the first that the box has."""
INTERACTIVE = frozenset({"ash", "bash", "dash", "ksh", "mksh", "sh", "zsh"})
"""Shells of images that can be used like those."""
LIFETIME_S = 7 * 86400.0
START_S = 30.0
INTERRUPTS = (b"\x03", b"\x03", b"\x1c")
"""What a command that ran too long gets from the terminal: SIGINT twice, then SIGQUIT."""
PATIENCE_S = 1.0
"""How long each of them may take before the next one."""
MAX_COMMAND = 1 << 20
TERMINAL_BYTES = 256 << 20
"""How much may appear on the terminal itself while the shell lives. Commands do not write there."""


def shells_of_image(command: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Shells to try first in a box from an image whose SHELL is this command. Only the program counts: its options are
    for single lines, and -e would end a shell that stays."""
    if not command or command[0].rpartition("/")[2] not in INTERACTIVE:
        return ()
    is_bash = command[0].rpartition("/")[2] == "bash"
    return ((command[0], *(SHELLS[0][1:] if is_bash else ("-i",))),)


class BoxOfShell(Protocol):
    """What a shell needs of its box."""

    id: str
    isolation: str

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, limits: Limits, pty: bool
    ) -> Process: ...
    def write(self, path: str, data: bytes | str) -> None: ...
    def remove(self, path: str) -> None: ...


class Shell:
    """Created by Sandbox.shell. One command at a time; other threads wait for their turn."""

    def __init__(
        self,
        box: BoxOfShell,
        head: Callable[[str, int], bytes],
        *,
        argv: Sequence[str] | None,
        of_image: Sequence[str] = (),
        env: Mapping[str, str],
        cwd: str | None,
        limits: Limits,
    ) -> None:
        self._box, self._head, self._limits = box, head, limits
        self._token = secrets.token_hex(16)
        self._report = re.compile(
            self._token.encode()
            + rb" (\d{1,3}) (\d{1,9})\s+(\d+)m([\d.]+)s\s+(\d+)m([\d.]+)s\s+(\d+)m([\d.]+)s\s+(\d+)m([\d.]+)s\s"
        )
        self._folder = f"/tmp/.shell-{secrets.token_hex(8)}"
        # What the shell itself calls that folder: a restricted box has it elsewhere.
        self._inside = self._folder if box.isolation == "full" else "$_harena_tmp"
        self._count = 0
        self._cpu_s = 0.0
        self._turn = threading.Lock()
        self._ended: str | None = None
        self._terminal = b""
        self._folder_removed = False
        step = "_harena_again() { return ${_harena_last:-0}; }\n_harena_again\n"
        step += ". {f}/command > {f}/out.$_harena_n 2> {f}/err.$_harena_n < /dev/null\n"
        box.write(f"{self._folder}/step", self._reporting(step.replace("{f}", self._inside)))
        box.write(f"{self._folder}/after", self._reporting("(exit 130)\n"))
        wide = replace(limits, wall_s=LIFETIME_S, cpu_s=None, output_bytes=TERMINAL_BYTES)
        env = {"PS1": "", "PS2": "", "HISTFILE": "", "PROMPT_COMMAND": "", "TERM": "dumb", **env}
        self._process = self._begin([argv] if argv else [*shells_of_image(of_image), *SHELLS], env, cwd, wide)

    def exec(self, command: str, *, timeout_s: float | None = None, output_bytes: int | None = None) -> Result:
        """Run a command in the shell and return its output and exit code. The limits are those of the shell, unless
        given. A command that runs too long is interrupted, and the shell lives on if the command gives way; otherwise
        the shell ends. What a background job writes after its command has ended is lost: redirect it to a file.
        `usage.peak_mb` is not measured here, and 0."""
        if "\0" in command or len(command.encode("utf-8", "surrogateescape")) > MAX_COMMAND:
            raise SpecError(f"command: at most {MAX_COMMAND} bytes, without NUL bytes")
        wall_s = self._limits.wall_s if timeout_s is None else timeout_s
        most = self._limits.output_bytes if output_bytes is None else output_bytes
        replace(self._limits, wall_s=wall_s, output_bytes=most)  # refuses what no limit may be
        with self._turn:
            return self._exec(command, wall_s, most)

    @property
    def alive(self) -> bool:
        return self._ended is None

    def close(self) -> None:
        """End the shell with its background jobs. Idempotent."""
        if self._folder_removed:
            return
        self._folder_removed = True
        self._ended = self._ended or "it was closed"
        with contextlib.suppress(BoxError, TimeoutError):
            self._process.kill()
            self._process.wait(PATIENCE_S)  # its jobs are gone as well then
        self._process.close()
        with contextlib.suppress(BoxError, BoxFileError):
            self._box.remove(self._folder)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- one command ----

    def _exec(self, command: str, wall_s: float, most: int) -> Result:
        if self._ended is not None:
            raise BoxClosed(f"the shell of box {self._box.id} has ended: {self._ended}")
        self._count += 1
        self._box.write(f"{self._folder}/command", command.encode("utf-8", "surrogateescape") + b"\n")
        started = time.monotonic()
        self._type(f"_harena_n={self._count}; . {self._inside}/step\n")
        code = self._wait(started + wall_s)
        late = code is None and self._ended is None
        if late:
            code = self._interrupt()
        out, err, over = self._output(most)
        usage = Usage(cpu_s=self._cpu_used(), wall_s=time.monotonic() - started, peak_mb=0.0, bytes=len(out) + len(err))
        detail, verdict = "", Verdict.OK
        if late:
            verdict, detail = Verdict.TIME, f"the command ran past wall_s={wall_s:g}"
            if self._ended is not None:
                detail += " and did not give way: the shell was ended"
        elif code is None:
            result = self._process.wait(START_S)
            self._ended = f"the command {command[:80]!r} ended it"
            detail = f"the command ended the shell; {result.detail}" if result.detail else "the command ended the shell"
            verdict = Verdict.EXIT if result.verdict is Verdict.OK else result.verdict
            code = result.exit_code
        elif over:
            verdict, detail = Verdict.OUTPUT, f"the command wrote more than output_bytes={most}"
        elif code:
            verdict, detail = Verdict.EXIT, f"the command ended with exit code {code}"
        return Result(
            verdict=verdict,
            exit_code=None if verdict in (Verdict.TIME, Verdict.OUTPUT) else code,
            signal=None,
            stdout=out,
            stderr=err,
            usage=usage,
            detail=detail,
            isolation=self._box.isolation,
        )

    def _interrupt(self) -> int | None:
        """End the command that runs. Ends the shell, if the command does not give way."""
        for key in INTERRUPTS:
            with contextlib.suppress(BrokenPipeError):
                self._process.write(key)
            patience = time.monotonic() + PATIENCE_S
            while time.monotonic() < patience:
                # An interrupt also ends the script that would have reported, and empties what was typed ahead.
                self._type(f"_harena_n={self._count}; . {self._inside}/after\n")
                code = self._wait(min(patience, time.monotonic() + 0.1))
                if code is not None or self._ended is not None:
                    return code
        self._ended = "a command ran too long and did not give way"
        self._process.close()
        return None

    def _type(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the shell has ended, which the next read notices
            self._process.write(line.encode())

    def _wait(self, until: float) -> int | None:
        """Exit code of the current command, or None: it has not ended in time, or the shell has ended."""
        while True:
            for found in self._report.finditer(self._terminal):
                numbers = found.groups()
                if int(numbers[1]) == self._count:
                    self._terminal = self._terminal[found.end() :]
                    self._times = [60 * int(numbers[i]) + float(numbers[i + 1]) for i in range(2, 10, 2)]
                    return int(numbers[0])
            try:
                data = self._process.stdout.read(timeout_s=max(0.0, until - time.monotonic()))
            except TimeoutError:
                return None
            if not data:
                self._ended = "its process ended"
                return None
            self._terminal = (self._terminal + data)[-65536:]

    def _cpu_used(self) -> float:
        total = sum(self._times)
        used, self._cpu_s = max(0.0, total - self._cpu_s), total
        return used

    def _output(self, most: int) -> tuple[bytes, bytes, bool]:
        """What the command wrote, up to the limit; the files are removed."""
        parts: list[bytes] = []
        left, over = most, False
        for name in ("out", "err"):
            path = f"{self._folder}/{name}.{self._count}"
            try:
                data = self._head(path, left + 1)
                self._box.remove(path)
            except BoxFileNotFound:
                data = b""  # the guest has removed it, or the shell did not get that far
            over |= len(data) > left
            parts.append(data[:left])
            left -= len(parts[-1])
        return parts[0], parts[1], over

    # ---- start ----

    def _reporting(self, script: str) -> str:
        return f"{script}_harena_last=$?\nprintf '\\n{self._token} %d %d\\n' $_harena_last $_harena_n\ntimes\n"

    def _begin(
        self, shells: Sequence[Sequence[str]], env: Mapping[str, str], cwd: str | None, limits: Limits
    ) -> Process:
        """Start the first shell that the box has."""
        for argv in shells:
            self._process = self._box.start(argv, env=env, cwd=cwd, limits=limits, pty=True)
            self._ended, self._times = None, [0.0]
            if self._inside != self._folder:
                self._type(f"_harena_tmp=$TMPDIR{self._folder.removeprefix('/tmp')}\n")
            self._type(f"_harena_n=0; . {self._inside}/after\n")
            if self._wait(time.monotonic() + START_S) is not None:
                self._cpu_s = sum(self._times)
                return self._process
            if self._ended is None:
                self._process.close()
                raise BoxError(f"box {self._box.id}: the shell {argv[0]} did not answer within {START_S:g} s")
            result = self._process.wait(START_S)
            if result.started and len(shells) == 1:
                raise BoxError(f"box {self._box.id}: the shell {argv[0]} ended at once: {result.detail}")
        names = " or ".join(argv[0] for argv in shells)
        raise BoxError(f"box {self._box.id} has no shell ({names}); use exec, which needs none")
