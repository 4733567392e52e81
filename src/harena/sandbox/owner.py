"""Ownership of boxes by processes.

A forked child of the host has copies of its parent's descriptors. If it used them, its requests would mix with its
parent's; if it shut them down, its parent's box would end. So it closes its copies at once and does nothing else.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol

from harena.errors import WrongProcess


class Owned(Protocol):
    def abandon(self) -> None:
        """Close this process's copies of descriptors, without any effect on the parent."""
        ...


_owned: weakref.WeakSet[Owned] = weakref.WeakSet()


def register(one: Owned) -> int:
    """Abandon the object in every child that this process forks. Returns the id of this process, for `check`."""
    _owned.add(one)
    return os.getpid()


def check(owner: int, what: str) -> None:
    """Raise WrongProcess in a forked child. Call it before taking a lock: a thread that the child lacks may hold it."""
    if os.getpid() != owner:
        raise WrongProcess(what)


def _abandon_all() -> None:
    for one in list(_owned):
        with contextlib.suppress(Exception):
            one.abandon()


os.register_at_fork(after_in_child=_abandon_all)
