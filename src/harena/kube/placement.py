"""Pods that a client has claimed, and what it has put into each: one box or session in a pod, or many.

The pool says how many a pod holds (`boxesPerPod`). A pod is released when it is empty: at once if it holds one, after
LINGER_S if it holds many, since the next box is then made without a claim.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from harena.errors import BoxError, HarenaError
from harena.kube.claims import Claim, PoolClient
from harena.sandbox.alarm import ALARM

LINGER_S = 10.0
TRIES = 3
"""Claimed pods that cannot be connected to before the last error is raised."""
C = TypeVar("C")


class PodPlace(Generic[C]):
    """A claimed pod."""

    def __init__(self, claim: Claim, connection: C) -> None:
        self.claim = claim
        self.connection = connection
        self.held = 0
        self.owner = os.getpid()
        self.lost = False
        """True if nothing more is put into it."""


class PodPlacement(Generic[C]):
    """Thread-safe. `connect` is called with each new claim; `usable` says whether a connection still works."""

    def __init__(self, pool: PoolClient, connect: Callable[[Claim], C], usable: Callable[[C], bool]) -> None:
        self._pool = pool
        self._connect = connect
        self._usable = usable
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        """One claim at a time while a pod may hold many: the others wait to share it."""
        self._places: list[PodPlace[C]] = []
        self._shares = True

    def enter(self, wait_s: float) -> PodPlace[C]:
        """Return a pod with room, and count one more in it."""
        deadline = time.monotonic() + wait_s
        found = self._with_room()
        if found is not None:
            return found
        if not self._shares:
            return self._claimed(deadline)
        with self._claiming:
            return self._with_room() or self._claimed(deadline)

    def enter_same(self, place: PodPlace[C]) -> None:
        """Count one more in a pod: a fork is where its parent is."""
        with self._lock:
            place.held += 1

    def _with_room(self) -> PodPlace[C] | None:
        with self._lock:
            for place in self._places:
                fits = place.held < place.claim.boxes or place.held == 0
                if place.owner == os.getpid() and not place.lost and fits and self._usable(place.connection):
                    place.held += 1
                    return place
        return None

    def _claimed(self, deadline: float) -> PodPlace[C]:
        for left in reversed(range(TRIES)):
            claim = self._pool.claim(max(0.1, deadline - time.monotonic()))
            self._shares = claim.boxes > 1
            try:
                place = PodPlace(claim, self._connect(claim))
            except BaseException as error:
                with contextlib.suppress(HarenaError):
                    self._pool.release(claim)
                if left and isinstance(error, BoxError) and time.monotonic() < deadline:
                    continue  # the pod has ended since it was last seen
                raise
            place.held = 1
            with self._lock:
                self._places.append(place)
            return place
        raise AssertionError("unreachable")

    def leave(self, place: PodPlace[C]) -> None:
        """Count one less in a pod. An empty one is released."""
        with self._lock:
            place.held -= 1
            if place.held > 0 or place.owner != os.getpid():
                return
        if place.claim.boxes > 1 and self._usable(place.connection):
            ALARM.at(time.monotonic() + LINGER_S, lambda: self._release_if_empty(place))
        else:
            self._release_if_empty(place)

    def _release_if_empty(self, place: PodPlace[C]) -> None:
        with self._lock:
            if place.held > 0 or place not in self._places:
                return
            self._places.remove(place)
            place.lost = True
        self._give_up(place)

    def _give_up(self, place: PodPlace[C]) -> None:
        # The operator removes a pod that could not be released: its server ends without clients.
        with contextlib.suppress(HarenaError):
            self._pool.release(place.claim)

    def close(self) -> None:
        """Release every pod that this process has claimed."""
        with self._lock:
            mine = [place for place in self._places if place.owner == os.getpid()]
            self._places.clear()
        for place in mine:
            place.lost = True
            self._give_up(place)
