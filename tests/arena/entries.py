"""Submissions in any state, for tests of what follows from them."""

from __future__ import annotations

from harena.arena.db.models import Event, Kind
from harena.arena.db.store import Outcome, Quota

ENV = "CartPole-v1"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def submit(store, owner="ann", algorithm="DQN", **more):
    return store.submit(owner, ENV, algorithm=algorithm, digest="0" * 64, main_file="agent.py", **more)


def started(store, owner="ann", algorithm="DQN", kind=Kind.VERIFIED):
    made = submit(store, owner, algorithm, quota=Quota(per_day=None, at_once=None))
    store.check(made.id, kind)
    store.move(made.id, Event.QUEUE)
    return store.move(made.id, Event.START)


def ranked(store, score, *args, **more):
    return store.rank(started(store, *args, **more).id, Outcome(score=score))


def names(entries):
    return [(entry.owner, entry.algorithm, entry.score) for entry in entries]
