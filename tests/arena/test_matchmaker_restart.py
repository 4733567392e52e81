"""A process that is killed in the middle of a ladder: the next one carries on, and every match counts once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from harena.arena.arena import Arena
from harena.arena.db.models import MatchState
from harena.arena.ladder.rebuild import rebuild
from harena.arena.settings import Settings

RPS = "rps-v1"
SERVE = """
import sys, time
from harena.arena.arena import Arena
from harena.arena.submissions.intake import Upload
from harena.arena.settings import Settings

with Arena(Settings.from_env(sys.argv[1], {})) as arena:
    arena.put_environment("rps", settings={"games_target": 10, "upkeep_s": 3600})
    for move in range(3):
        code = f"def act(observation):\\n    return {move}\\n".encode()
        arena.submissions.submit([Upload(name="agent.py", data=code)], owner=f"owner{move}", env_id="rps-v1")
    while True:
        print(len(arena.store.ratings.all("rps-v1", season_id=1)), flush=True)
        time.sleep(0.02)
"""
SOON_S = 60.0


@pytest.mark.thorough
def test_a_ladder_that_is_killed_goes_on_and_no_rating_moves_twice(tmp_path):
    with subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 8:
                break
        process.send_signal(signal.SIGKILL)
    settings = Settings.from_env(tmp_path, {})
    with Arena(settings) as arena:
        end = time.monotonic() + SOON_S
        lines = []
        while len(lines) < 3 or min(line.games for line in lines) < 10 or arena.store.matches.open():
            assert time.monotonic() < end, "it did not go on"
            time.sleep(0.05)
            lines = arena.standings.standings(RPS)
        while arena.store.ratings.rated_up_to(RPS) < max(
            match.number for match in arena.store.matches.where(env_id=RPS)
        ):
            assert time.monotonic() < end, "ratings do not follow"
            time.sleep(0.05)
        played = arena.store.matches.where(env_id=RPS, limit=1000)
        assert {match.state for match in played} == {MatchState.FINISHED}
        assert [match.number for match in reversed(played)] == list(range(1, len(played) + 1))
        ratings = arena.store.ratings.all(RPS, season_id=1)
        assert len(ratings) == len({(one.match_number, one.submission_id) for one in ratings}) == 2 * len(played)
    with Arena(settings) as arena:
        assert rebuild(arena.store, RPS, 1, check=True).rating == ""
        assert arena.store.matches.open() == []
