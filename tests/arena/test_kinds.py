"""The registry of job kinds."""

from __future__ import annotations

from harena.arena.arena import Arena
from harena.arena.queue.kinds import BY_NAME, EVALUATIONS, KINDS
from harena.arena.settings import Settings


def test_an_arena_works_on_every_kind_of_the_registry(tmp_path):
    arena = Arena(Settings.from_env(tmp_path, {"HARENA_WORKERS": "1"}))
    try:
        assert list(arena.workers._handlers) == [kind.name for kind in KINDS]
        lanes = [kind for lane in arena.workers.lanes for kind in lane.kinds]
        assert sorted(lanes) == sorted(BY_NAME)
        assert all(callable(kind.given_up(arena)) for kind in KINDS)
    finally:
        arena.stop(0.0)


def test_names_that_databases_of_today_hold_stay():
    assert {"evaluate", "enter", "script", "final", "match", "desk"} <= set(BY_NAME)
    assert EVALUATIONS == ("evaluate", "enter", "script")
