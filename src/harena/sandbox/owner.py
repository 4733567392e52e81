"""Which process a box and its parts belong to.

A forked child of the host has copies of its parent's descriptors. Were it to use them, its requests would mix with its
parent's; were it to end them politely, its parent's box would end. So it closes its copies at once, and nothing more.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol

from harena.errors import WrongProcess


class Owned(Protocol):
    def abandon(self) -> None:
        """Closes this process's copies of descriptors, and does nothing that the parent could notice."""
        ...


_owned: weakref.WeakSet[Owned] = weakref.WeakSet()


def register(one: Owned) -> int:
    """Has it abandoned in every child that this process forks. Returns this process, for `check`."""
    _owned.add(one)
    return os.getpid()


def check(owner: int, what: str) -> None:
    """Comes before any lock is taken: a thread that the child does not have may have held it."""
    if os.getpid() != owner:
        raise WrongProcess(what)


def _abandon_all() -> None:
    for one in list(_owned):
        with contextlib.suppress(Exception):
            one.abandon()


os.register_at_fork(after_in_child=_abandon_all)
