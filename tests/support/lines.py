"""A network namespace with nothing but its own loopback, whose line the test makes slow, lossy or dead.

It is made by a thread, and what that thread starts is in it. It ends with its last process and file descriptor.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import pytest

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
TABLE = "harena_line"


class Line:
    def __init__(self) -> None:
        for program, package in (("tc", "iproute2"), ("nft", "nftables")):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is missing: install {package}")
        self._namespace = -1
        in_thread(self._create)
        self._command("ip", "link", "set", "lo", "up", "mtu", "1500")  # as of a cable

    def _create(self) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            pytest.skip("host: no network namespace can be made")
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, work: Callable[[], T]) -> T:
        """Do something in the namespace. Threads and processes that it starts are there too."""

        def inside() -> T:
            assert not ctypes.CDLL(None).setns(self._namespace, CLONE_NEWNET)
            return work()

        return in_thread(inside)

    def shape(self, *discipline: str) -> None:
        """Let all packets pass this queueing discipline of `tc`."""
        done = self.run(lambda: _run("tc", "qdisc", "replace", "dev", "lo", "root", *discipline))
        if "qdisc kind is unknown" in done.stderr:
            pytest.skip(f"host: the kernel has no {discipline[0]}")
        assert done.returncode == 0, done.stderr

    def drop(self, percent: int) -> None:
        """Let packets vanish on their way, without anybody being told. 0: no more."""
        rule = "drop" if percent == 100 else f"numgen random mod 100 < {percent} drop"
        chain = f"chain arriving {{ type filter hook input priority 0\n {rule}\n }}" if percent else ""
        rules = f"table ip {TABLE} {{\n}}\n delete table ip {TABLE}\n table ip {TABLE} {{\n {chain}\n }}\n"
        self._command("nft", rules)

    def restore(self) -> None:
        self.drop(0)
        self.shape("pfifo")

    def close(self) -> None:
        os.close(self._namespace)

    def _command(self, *argv: str) -> None:
        done = self.run(lambda: _run(*argv))
        assert done.returncode == 0, done.stderr


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def in_thread(work: Callable[[], T]) -> T:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    return future.result()
