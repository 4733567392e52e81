"""Peers that are Python packages: sandlock, pydantic-monty, and llm-sandbox on the Docker Engine of `containers`."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import commands
import containers
from peer import Peer


@contextmanager
def sandlock(_: Path) -> Generator[Peer]:
    package = importlib.import_module("sandlock")
    readable = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/dev", *commands.outside_usr()]

    def output(*argv: str) -> str:
        result = package.Sandbox(fs_readable=readable, fs_writable=["/tmp"]).run(list(argv), timeout=10)
        if not result.success:
            raise RuntimeError(f"sandlock: {result}")
        return result.stdout.decode()

    yield Peer(
        once={
            "cold_true": lambda: _expect(output("/bin/true"), ""),
            "cold_python": lambda: _expect(output(commands.PYTHON, commands.BARE, "-c", "print(1)"), "1\n"),
        },
        run=lambda source: output(commands.PYTHON, commands.BARE, "-c", source),
    )


@contextmanager
def monty(_: Path) -> Generator[Peer]:
    """A subset of Python in an interpreter of its own, in worker processes; a session is new, its worker is not."""
    package = importlib.import_module("pydantic_monty")

    def cold() -> None:
        with package.Monty() as own, own.checkout() as session:
            _expect(session.feed_run("1"), 1)

    with package.Monty(min_processes=2) as pool:

        def warm() -> None:
            with pool.checkout() as session:
                _expect(session.feed_run("1"), 1)

        def run(source: str) -> str:
            printed = package.CollectString()
            with pool.checkout() as session:
                session.feed_run(source, print_callback=printed)
            return printed.output

        yield Peer(once={"cold_python": cold, "warm_python": warm}, run=run)


@contextmanager
def llm_sandbox(folder: Path) -> Generator[Peer]:
    """Cold is a new session's first answer, without its close: that waits for Docker to stop the container."""
    package = importlib.import_module("llm_sandbox")
    logging.disable(logging.CRITICAL)
    with containers.engine(folder) as host:
        os.environ["DOCKER_HOST"] = host
        opened: list[Any] = []

        def session() -> Any:
            # Setting up an environment would fetch pip from the network; the image has what the programs need.
            made = package.SandboxSession(
                lang="python",
                image=containers.IMAGE,
                skip_environment_setup=True,
                keep_template=True,
                runtime_configs={"network_mode": "none", "stop_signal": "SIGKILL"},
            )
            made.open()
            opened.append(made)
            return made

        def cold() -> Callable[[], None]:
            fresh = session()
            _expect(_run(fresh, "print(1)"), "1\n")
            return fresh.close

        try:
            warm = session()
            yield Peer(
                once={"cold_python": cold, "warm_python": lambda: _expect(_run(warm, "print(1)"), "1\n")},
                run=lambda source: _run(warm, source),
            )
        finally:
            for one in opened:
                one.close()


def _run(session: Any, source: str) -> str:
    result = session.run(source)
    if result.exit_code:
        raise RuntimeError(f"llm-sandbox: {result.stderr[-300:]}")
    return result.stdout


def _expect(got: object, wanted: object) -> None:
    if got != wanted:
        raise RuntimeError(f"wanted {wanted!r}, got {got!r}")
