"""Peers without isolation: exec in this interpreter, a forked child per program, and a pebble pool.

The pool is what the authors of Absolute Zero run their programs with: workers are reused, so what one program changes
in its interpreter the next one finds. `pebble_serial` is their default, one worker and one program at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import multiprocessing
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from peer import Peer

WORKERS = 2
_fork = multiprocessing.get_context("fork")


def execute(source: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@contextmanager
def in_process(_: Path) -> Generator[Peer]:
    """The floor: what the programs themselves cost. It cannot end a loop, so it takes no timeout."""
    with _fork.Pool(WORKERS) as pool:

        def batch(sources: Sequence[str], _: float) -> list[str | None]:
            return list(pool.map(execute, sources, chunksize=16))

        yield Peer(once={"warm_python": lambda: _expect_one(execute("print(1)"))}, batch=batch)


@contextmanager
def child_each(_: Path) -> Generator[Peer]:
    with ThreadPoolExecutor(WORKERS) as threads:

        def batch(sources: Sequence[str], timeout_s: float) -> list[str | None]:
            return list(threads.map(_in_child, sources, itertools.repeat(timeout_s)))

        yield Peer(once={"warm_python": lambda: _expect_one(_in_child("print(1)", 10))}, batch=batch)


@contextmanager
def pebble_pool(_: Path) -> Generator[Peer]:
    with _pebble(WORKERS) as pool:

        def batch(sources: Sequence[str], timeout_s: float) -> list[str | None]:
            futures = [pool.schedule(execute, args=(source,), timeout=timeout_s) for source in sources]
            return [_outcome(future) for future in futures]

        yield Peer(once={"warm_python": lambda: _expect_one(batch(["print(1)"], 10)[0])}, batch=batch)


@contextmanager
def pebble_serial(_: Path) -> Generator[Peer]:
    with _pebble(1) as pool:

        def batch(sources: Sequence[str], timeout_s: float) -> list[str | None]:
            return [_outcome(pool.schedule(execute, args=(source,), timeout=timeout_s)) for source in sources]

        yield Peer(batch=batch)


def _in_child(source: str, timeout_s: float) -> str | None:
    ours, theirs = _fork.Pipe(duplex=False)
    child = _fork.Process(target=_answer, args=(source, theirs))
    child.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(timeout_s) else None
    finally:
        child.kill()
        child.join()
        ours.close()


def _answer(source: str, out: Connection) -> None:
    out.send(execute(source))


@contextmanager
def _pebble(workers: int) -> Generator[Any]:
    pool = importlib.import_module("pebble").ProcessPool(max_workers=workers, context=_fork)
    try:
        yield pool
    finally:
        pool.stop()
        pool.join()


def _outcome(future: Future[str]) -> str | None:
    try:
        return future.result()
    except TimeoutError:
        return None


def _expect_one(printed: str | None) -> None:
    if printed != "1\n":
        raise RuntimeError(f"print(1) printed {printed!r}")
