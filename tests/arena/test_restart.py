"""The process is killed in the middle of its work; the next one goes on, and nothing is lost or counted twice."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from support.killable import Server, until

pytest.importorskip("gymnasium")

from harena.arena.db import models
from harena.arena.db.files import FileStore
from harena.arena.db.models import EnvironmentKind, JobState, MatchState, State, SubmissionKind
from harena.arena.db.records import Sort
from harena.arena.db.store import Store
from harena.arena.ladder.rebuild import rebuild
from harena.arena.lock import FolderInUse, FolderLock
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.service import Submissions

ENV = "CartPole-v1"
AGENT = "def act(observation): return {number} % 2\n"
CRASH = "def act(observation): raise ValueError({number})\n"
SCRIPT = "import json\nprint(json.dumps({{'score': {number}}}))\n"


def source(number):
    return CRASH if number % 20 == 7 else SCRIPT if number % 25 == 3 else AGENT


def send_all(folder, store, queue, sent):
    settings = Settings.from_env(folder, {"HARENA_PER_DAY": "0", "HARENA_AT_ONCE": "0"})
    taking = Submissions(store, queue, FileStore(settings.files), settings)

    def send(number):
        code = source(number).format(number=number).encode()
        return taking.submit([Upload(name="a.py", data=code)], owner="ann", env_id=ENV, algorithm=f"A{number % 9}").id

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(pool.map(send, range(sent)), range(sent), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.thorough
@pytest.mark.parametrize("sent", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_evaluations_survive_two_kills(tmp_path, sent):
    store = Store(Settings.from_env(tmp_path, {}).database_url)
    queue = store.jobs
    store.environments.put(ENV, EnvironmentKind.VERIFIED, settings={"episodes": 2})
    store.seasons.start(ENV, "season 1")
    numbers = send_all(tmp_path, store, queue, sent)

    def count(*states):
        return sum(n for (_, state), n in queue.counts().items() if state in states)

    kills = (sent // 4, sent * 3 // 5)
    for done in kills:
        server = Server(tmp_path)
        until(lambda: count(JobState.DONE) >= done and count(JobState.RUNNING) >= 2)  # noqa: B023
        if done == kills[0]:
            with pytest.raises(FolderInUse, match=f"process {server.process.pid} "):
                FolderLock(tmp_path)
        server.kill()
        assert count(JobState.QUEUED) > 0
        assert count(JobState.RUNNING) > 0
    server = Server(tmp_path)
    until(lambda: not count(JobState.QUEUED, JobState.RUNNING))
    server.stop()

    assert count(JobState.DONE) == sent
    submissions = {one.id: one for one in store.submissions.of("ann", limit=1000)}
    assert submissions.keys() == numbers.keys()
    assert store.quotas.used("ann") == (sent, 0)
    with store.database.read() as connection:
        charged = connection.scalar(sa.select(sa.func.count()).select_from(models.charges))
    assert charged == sent
    for submission_id, number in numbers.items():
        check_one(store, submissions[submission_id], number)
    jobs = [queue.get(one.job_id) for one in submissions.values()]
    assert {job.attempts for job in jobs} == {1}  # the arena's own end is charged to nobody
    deaths = Counter(job.deaths for job in jobs)
    assert deaths[0] < sent
    assert set(deaths) <= {0, 1, 2}
    check_boards(store, submissions.values())
    incoming = tmp_path / "files" / "incoming"
    for half_written in incoming.iterdir():  # a kill may come in the middle of a write; an hour later it is swept
        os.utime(half_written, (0, 0))
    FileStore(tmp_path / "files")
    assert os.listdir(incoming) == []
    store.close()


LADDER = "tictactoe-v1"
PLAYER = """
def act(observation):
    free = [cell for cell, mark in enumerate(observation.ravel()) if mark == 0]
    return free[{number} % len(free)]
"""
GAMES = 16


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_a_ladder_survives_two_kills_and_moves_no_rating_twice(tmp_path):
    settings = Settings.from_env(tmp_path, {})
    store = Store(settings.database_url)
    store.environments.put(LADDER, EnvironmentKind.LADDER, settings={"games_target": GAMES, "upkeep_s": 86400})
    season = store.seasons.start(LADDER, "season 1")
    taking = Submissions(store, store.jobs, FileStore(settings.files), settings)
    for number in range(4):
        uploads = [Upload(name="a.py", data=PLAYER.format(number=number).encode())]
        taking.submit(uploads, owner=f"owner{number}", env_id=LADDER)

    def finished():
        return store.matches.where(env_id=LADDER, state=MatchState.FINISHED, limit=1000)

    for played in (6, 14):
        server = Server(tmp_path)
        until(lambda: len(finished()) >= played)  # noqa: B023
        server.kill()
    server = Server(tmp_path)
    until(lambda: all(n >= GAMES for n in games(finished()).values()) and len(games(finished())) == 4)
    server.stop()

    log = finished()
    assert len({match.number for match in log}) == len(log)
    found = rebuild(store, LADDER, season.id, check=True)
    assert (found.same, found.matches) == (True, len(log))
    moved = Counter(rating.match_number for rating in store.ratings.all(LADDER, season_id=season.id))
    assert set(moved.values()) == {2}
    assert len(moved) == len(log) - found.behind
    store.close()


def games(matches):
    return Counter(seat.submission_id for match in matches for seat in match.seats)


def check_one(store, submission, number):
    told = Counter(notice.body["state"] for notice in store.events.after(0, topic=f"submission:{submission.id}"))
    failed = source(number) is CRASH
    assert submission.state is (State.FAILED if failed else State.RANKED)
    assert told["ranked"] + told["failed"] + told["cancelled"] + told["rejected"] == 1
    assert len(store.submissions.evaluations(submission.id)) == (0 if failed else 1)
    if source(number) is SCRIPT:
        assert (submission.kind, submission.score) == (SubmissionKind.SELF_REPORTED, number)


def check_boards(store, submissions):
    for kind in SubmissionKind:
        best = {}
        for one in submissions:
            if one.kind is kind and one.score is not None:
                best[one.algorithm] = max(one.score, best.get(one.algorithm, one.score))
        entries = store.boards.top(ENV, kind=kind, sort=Sort.SCORE_DESC)
        assert {entry.algorithm: entry.score for entry in entries} == best
