"""Submissions in any state, for tests of what follows from them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from harena.arena.db.models import Event, SubmissionKind
from harena.arena.db.records import DefaultQuota, EvaluationOutcome
from harena.arena.db.store import Store

ENV = "CartPole-v1"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@functools.cache
def _new_arena():
    with tempfile.TemporaryDirectory() as folder:
        Store(f"sqlite:///{folder}/arena.db").close()
        assert [path.name for path in Path(folder).iterdir()] == ["arena.db"], "nothing is left in another file"
        return (Path(folder) / "arena.db").read_bytes()


def prepared_sqlite(folder):
    """The URL of the folder's database. A new one is a copy: to make the tables takes six times as long."""
    path = Path(folder) / "arena.db"
    if not path.exists():
        path.write_bytes(_new_arena())
    return f"sqlite:///{path}"


def submit(store, owner="ann", algorithm="DQN", **more):
    return store.submissions.add(owner, ENV, algorithm=algorithm, digest="0" * 64, main_file="agent.py", **more)


def started(store, owner="ann", algorithm="DQN", kind=SubmissionKind.VERIFIED):
    made = submit(store, owner, algorithm, quota=DefaultQuota(per_day=None, at_once=None))
    store.submissions.check(made.id, kind)
    store.submissions.move(made.id, Event.QUEUE)
    return store.submissions.move(made.id, Event.START)


def ranked(store, score, *args, **more):
    return store.submissions.rank(started(store, *args, **more).id, EvaluationOutcome(score=score))


def names(entries):
    return [(entry.owner, entry.algorithm, entry.score) for entry in entries]
