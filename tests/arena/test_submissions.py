"""A submission goes from its upload to its result, whatever it is, and whoever's fault it is when it does not."""

from __future__ import annotations

import io
import threading
import time
import zipfile
from collections import Counter

import pytest

pytest.importorskip("gymnasium")

from harena.arena.db import jobs as jobs_module
from harena.arena.db.models import (
    Busy,
    Conflict,
    EnvironmentKind,
    IllegalTransition,
    JobState,
    NotFound,
    QuotaExceeded,
    State,
    SubmissionKind,
)
from harena.arena.db.records import DefaultQuota
from harena.arena.queue import workers as workers_module
from harena.arena.submissions import service as module
from harena.arena.submissions.evaluate import EvaluationVoid, commitment, seeds
from harena.arena.submissions.intake import IntakeError, Upload
from harena.errors import BoxLost, Retry, SpecError
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode
from harena.match.run.runner import Runner
from support.submitting import AGENT, OTHER, POLE, TIC, Bench

CRASH = b"def act(observation): raise ValueError('SECRET in my code')\n"
SLOW = b"import time\ndef act(observation):\n    while True: pass\n"
SCRIPT = b'import json, sys\nprint("env", sys.argv[1])\nprint(json.dumps({"score": 1e9, "metrics": {"lr": 0.1}}))\n'
FIRST_FREE = b"def act(observation): return [*observation.ravel()].index(0)\n"
SOON_S = 30.0


@pytest.fixture(scope="module")
def runner():
    with Runner(1) as runner:
        yield runner


@pytest.fixture
def idle(tmp_path, runner):
    """Nobody works."""
    bench = Bench(tmp_path, runner)
    yield bench
    bench.close()


@pytest.fixture
def bench(idle):
    idle.work()
    return idle


# ---- an agent is verified ----


def test_an_agent_is_ranked_on_the_hidden_episodes_of_its_season(bench):
    made = bench.send(AGENT, algorithm="DQN", client_id="c-1")
    assert (made.state, made.kind, made.owner, made.algorithm) == (State.QUEUED, SubmissionKind.VERIFIED, "ann", "DQN")
    assert (made.main_file, made.client_id, made.season_id) == ("agent.py", "c-1", 1)
    done = bench.until(made)
    assert (done.state, done.reason) == (State.RANKED, "")
    (evaluation,) = bench.store.submissions.evaluations(made.id)
    secret = bench.store.seasons.secret(made.season_id)
    assert evaluation.episodes == len(evaluation.metrics["returns"]) == 3
    assert evaluation.metrics["season"] == commitment(secret)
    exact = sum(evaluation.metrics["returns"]) / 3
    assert done.score == evaluation.score == pytest.approx(exact, abs=(done.high - done.low) / 20)
    assert done.low <= done.score <= done.high
    assert bench.submissions.log(done) == "hello\n"
    (entry,) = bench.store.boards.top(POLE)
    assert (entry.submission_id, entry.score) == (made.id, done.score)
    assert Counter(seen.step for seen in bench.seen) == {"started": 1, "ranked": 1}


def test_replays_are_kept_and_no_seed_is_in_what_everybody_sees(bench):
    done = bench.until(bench.send(AGENT))
    (evaluation,) = bench.store.submissions.evaluations(done.id)
    hidden = seeds(bench.store.seasons.secret(1), POLE, 3)
    for kept in evaluation.metrics["replays"]:
        assert Replay.load(bench.files.get(kept["digest"])).seed == hidden[kept["episode"]]
    public = str(evaluation.metrics) + str(bench.store.events.after(0, limit=1000))
    assert not any(str(seed) in public for seed in hidden)


def test_several_files_and_a_zip_play_as_they_are(bench):
    parts = [
        b"from part1 import choose\ndef act(observation): return choose(observation)\n",
        b"def choose(o): return 0\n",
    ]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("mine/agent.py", parts[0])
        archive.writestr("mine/part1.py", parts[1])
    several = bench.until(bench.send(*parts, main_file="agent.py"))
    zipped = bench.until(
        bench.submissions.submit([Upload(name="a.zip", data=stream.getvalue())], owner="bob", env_id=POLE)
    )
    assert several.state is zipped.state is State.RANKED
    assert (several.score, several.digest) == (zipped.score, zipped.digest)
    with zipfile.ZipFile(io.BytesIO(bench.submissions.code_zip(zipped))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"agent.py": parts[0], "part1.py": parts[1]}


def test_code_comes_back_by_a_name_that_can_be_shown(idle):
    made = idle.send(AGENT, owner="ann", algorithm="DQN")
    code = idle.submissions.code(made)
    assert isinstance(code, AgentCode)
    assert code.name == "ann DQN v1"
    assert code.files == {"agent.py": AGENT}


def test_an_agents_own_fault_is_its_result_and_costs_its_quota(bench):
    done = bench.until(bench.send(CRASH))
    assert done.state is State.FAILED
    assert "crash in practice episode 1 of 2" in done.reason
    assert "SECRET in my code" in done.reason
    assert bench.store.quotas.used("ann") == (1, 0)
    assert (bench.store.boards.top(POLE), bench.store.submissions.evaluations(done.id)) == ([], [])
    assert "SECRET" not in str(bench.store.events.after(0, limit=1000))
    assert [(seen.step, seen.fault) for seen in bench.seen] == [("started", ""), ("failed", "crash")]
    assert bench.queue.get(done.job_id).state is JobState.DONE


# ---- a script says it itself ----


def test_a_self_reported_billion_never_stands_with_verified_scores(bench):
    verified = bench.until(bench.send(AGENT))
    boast = bench.send(SCRIPT, owner="bob")
    assert boast.kind is SubmissionKind.SELF_REPORTED
    done = bench.until(boast)
    assert (done.state, done.score) == (State.RANKED, 1e9)
    assert [entry.submission_id for entry in bench.store.boards.top(POLE)] == [verified.id]
    (apart,) = bench.store.boards.top(POLE, kind=SubmissionKind.SELF_REPORTED)
    assert (apart.submission_id, apart.kind) == (done.id, SubmissionKind.SELF_REPORTED)
    (evaluation,) = bench.store.submissions.evaluations(done.id)
    assert (evaluation.kind, evaluation.metrics["metrics"]) == (SubmissionKind.SELF_REPORTED, {"lr": 0.1})
    assert bench.submissions.log(done).startswith(f"env {POLE}\n")


def test_a_script_without_a_score_has_failed_with_the_end_of_its_log(bench):
    done = bench.until(bench.send(b"print('training')\nraise SystemExit(3)\n"))
    assert done.state is State.FAILED
    assert "exit code 3" in done.reason
    assert bench.submissions.log(done) == "training"
    assert bench.store.quotas.used("ann") == (1, 0)


def test_where_only_scripts_are_run_an_agent_is_a_script(bench):
    source = AGENT + b"import json\nprint(json.dumps({'score': 7}))\n"
    done = bench.until(bench.send(source, env_id=OTHER))
    assert (done.state, done.kind, done.main_file, done.score) == (
        State.RANKED,
        SubmissionKind.SELF_REPORTED,
        "submission.py",
        7,
    )
    assert bench.store.boards.top(OTHER) == []


def test_what_a_script_prints_is_kept_with_a_cap(bench):
    done = bench.until(bench.send(b"print('x' * 3_000_000)\nprint('{\"score\": 1}')\n"))
    assert done.state is State.RANKED
    assert len(bench.submissions.log(done)) <= module.MAX_LOG


# ---- a ladder ----


def test_an_agent_enters_a_ladder_after_a_game_with_itself(bench):
    done = bench.until(bench.send(FIRST_FREE, env_id=TIC))
    assert (done.state, done.reason) == (State.RANKED, "")
    assert (done.score, bench.store.submissions.evaluations(done.id), bench.store.boards.top(TIC)) == (None, [], [])


def test_an_agent_that_cannot_play_stays_off_the_ladder(bench):
    done = bench.until(bench.send(b"def act(observation): return 'left'\n", env_id=TIC))
    assert done.state is State.FAILED
    assert "not allowed in tictactoe-v1" in done.reason
    assert bench.store.quotas.used("ann") == (1, 0)


def test_a_script_is_told_what_an_agent_is(idle):
    with pytest.raises(IntakeError, match="define `class Agent`"):
        idle.send(SCRIPT, env_id=TIC)
    assert (idle.stored(), idle.store.quotas.used("ann")) == ([], (0, 0))


# ---- what is refused leaves nothing ----


@pytest.mark.parametrize(
    ("name", "data"), [("../agent.py", b"\0"), ("a.ipynb", b"{}"), ("a.zip", b"PK\3\4broken"), ("a.py", b"")]
)
def test_a_bad_upload_leaves_nothing(idle, name, data):
    with pytest.raises(IntakeError):
        idle.submissions.submit([Upload(name=name, data=data)], owner="ann", env_id=POLE)
    assert (idle.stored(), idle.queue.counts(), idle.store.submissions.of("ann")) == ([], {}, [])


@pytest.mark.parametrize("bad", [{"algorithm": ""}, {"owner": "a" * 201}, {"client_id": "\ud800"}])
def test_a_bad_name_leaves_nothing(idle, bad):
    with pytest.raises(SpecError):
        idle.send(AGENT, **bad)
    assert (idle.stored(), idle.queue.counts()) == ([], {})


def test_a_refusal_leaves_the_same_code_of_another_alone(idle):
    made = idle.send(AGENT)
    with pytest.raises(SpecError):
        idle.send(AGENT, algorithm="")
    assert idle.submissions.code(made)


def test_more_than_the_host_allows_is_refused(idle):
    idle.with_settings(quota=DefaultQuota(per_day=3, at_once=2))
    for _ in range(2):
        idle.send(AGENT)
    with pytest.raises(QuotaExceeded, match="2 submissions at once"):
        idle.send(AGENT)
    idle.send(AGENT, owner="bob")
    idle.with_settings(max_queued=3)
    with pytest.raises(Busy, match="3 submissions wait"):
        idle.send(AGENT, owner="eve")
    assert idle.store.owners.find("eve") is None


def test_quotas_hold_against_many_at_once(idle):
    idle.with_settings(quota=DefaultQuota(per_day=3, at_once=None))
    results = []

    def send():
        try:
            results.append(idle.send(AGENT).version)
        except QuotaExceeded as error:
            results.append(type(error))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(results) == {1: 1, 2: 1, 3: 1, QuotaExceeded: 5}
    assert idle.submissions.code(idle.store.submissions.of("ann")[0])


def test_a_closed_environment_takes_nothing(idle):
    with pytest.raises(NotFound):
        idle.send(AGENT, env_id="nowhere-v1")
    idle.store.seasons.freeze(1)
    with pytest.raises(Conflict, match="frozen"):
        idle.send(AGENT)
    idle.store.seasons.end(1)
    with pytest.raises(Conflict, match="no season runs"):
        idle.send(AGENT)
    idle.store.environments.put(TIC, EnvironmentKind.LADDER, enabled=False)
    with pytest.raises(Conflict, match="switched it off"):
        idle.send(FIRST_FREE, env_id=TIC)


def test_a_season_that_ends_while_the_upload_is_read_takes_nothing(idle, monkeypatch):
    take_in = module.intake.take_in

    def slowly(*args, **more):
        taken = take_in(*args, **more)
        idle.store.seasons.end(1)
        return taken

    monkeypatch.setattr(module.intake, "take_in", slowly)
    with pytest.raises(Conflict, match="no season runs"):
        idle.send(AGENT)
    assert (idle.stored(), idle.queue.counts(), idle.store.quotas.used("ann")) == ([], {}, (0, 0))


# ---- cancel, delete, evaluate again ----


def test_what_waits_is_cancelled_at_once(idle):
    first, second = idle.send(AGENT), idle.send(AGENT)
    assert idle.submissions.place(second).position == 1
    cancelled = idle.submissions.cancel(first.id)
    assert (cancelled.state, idle.queue.get(first.job_id).state) == (State.CANCELLED, JobState.CANCELLED)
    assert idle.submissions.place(cancelled).position == idle.submissions.place(second).position == 0
    with pytest.raises(Conflict, match="nothing to cancel"):
        idle.submissions.cancel(first.id)


@pytest.mark.parametrize("source", [SLOW, b"import time\ntime.sleep(200)\n"])
def test_what_runs_is_ended_soon(bench, source):
    made = bench.send(source)
    bench.until(made, State.RUNNING)
    time.sleep(0.2)
    began = time.monotonic()
    assert bench.submissions.cancel(made.id).state is State.CANCELLED
    while bench.workers.running:
        assert time.monotonic() - began < SOON_S
        time.sleep(0.01)
    assert bench.store.submissions.get(made.id).state is State.CANCELLED
    assert bench.until(bench.send(AGENT)).state is State.RANKED  # the place is free again


def test_one_under_way_is_cancelled_and_deleted(bench):
    made = bench.send(SLOW)
    bench.until(made, State.RUNNING)
    deleted = bench.submissions.delete(made.id)
    assert (deleted.state, deleted.deleted_at is not None) == (State.CANCELLED, True)
    assert bench.store.submissions.of("ann") == []
    for again in (bench.submissions.delete, bench.submissions.cancel, bench.submissions.reevaluate):
        with pytest.raises(NotFound):
            again(made.id)


def test_deleting_takes_the_best_off_the_board_and_leaves_the_next(bench):
    worse, better = bench.until(bench.send(b"def act(o): return 0\n")), bench.until(bench.send(AGENT))
    assert bench.store.boards.top(POLE)[0].submission_id == better.id
    bench.submissions.delete(better.id)
    assert [entry.submission_id for entry in bench.store.boards.top(POLE)] == [worse.id]


def test_an_evaluation_is_repeated_as_often_as_asked_and_gives_the_same(bench):
    done = bench.until(bench.send(AGENT))
    jobs = {done.job_id}
    for _ in range(3):
        again = bench.submissions.reevaluate(done.id)
        assert (again.state, again.score) == (State.QUEUED, done.score)
        jobs.add(again.job_id)
        assert bench.until(again).state is State.RANKED
    evaluations = bench.store.submissions.evaluations(done.id)
    assert (len(evaluations), len(jobs)) == (4, 4)
    assert len({evaluation.metrics["digest"] for evaluation in evaluations}) == 1
    assert bench.store.quotas.used("ann") == (4, 0)


def test_failed_and_cancelled_ones_are_evaluated_again_too(bench):
    failed = bench.until(bench.send(CRASH))
    assert bench.until(bench.submissions.reevaluate(failed.id)).state is State.FAILED
    running = bench.send(SLOW)
    bench.until(running, State.RUNNING)
    bench.submissions.cancel(running.id)
    assert bench.submissions.reevaluate(running.id).state is State.QUEUED
    with pytest.raises(Conflict, match="evaluated already"):
        bench.submissions.reevaluate(running.id)
    bench.submissions.cancel(running.id)


def test_evaluating_again_counts_and_is_refused_where_submitting_is(idle):
    idle.with_settings(quota=DefaultQuota(per_day=2, at_once=1))
    made = idle.send(AGENT)
    idle.submissions.cancel(made.id)
    idle.submissions.reevaluate(made.id)
    idle.submissions.cancel(made.id)
    with pytest.raises(QuotaExceeded, match="2 submissions a day"):
        idle.submissions.reevaluate(made.id)
    assert (idle.store.submissions.get(made.id).state, idle.store.quotas.used("ann")) == (State.CANCELLED, (2, 0))
    idle.with_settings(quota=DefaultQuota())
    idle.store.seasons.end(1)
    idle.store.seasons.start(POLE, "season 2")
    with pytest.raises(Conflict, match="its season has ended"):
        idle.submissions.reevaluate(made.id)


def test_a_rejected_one_is_not_evaluated_again_and_not_charged(idle):
    made = idle.send(AGENT)
    job = idle.queue.claim("evaluate", "w")
    idle.submissions._begin(job)
    idle.store.submissions.reject(made.id, "not acceptable")
    with pytest.raises(IllegalTransition):
        idle.submissions.reevaluate(made.id)
    assert idle.store.quotas.used("ann") == (1, 0)


def test_an_old_seasons_score_does_not_stand_on_the_new_seasons_board(bench):
    old = bench.until(bench.send(AGENT))
    bench.store.seasons.end(old.season_id)
    bench.store.boards.clear(POLE)
    bench.store.seasons.start(POLE, "season 2")
    new = bench.until(bench.send(b"def act(o): return 0\n"))
    assert new.score < old.score
    assert [entry.submission_id for entry in bench.store.boards.top(POLE)] == [new.id]
    bench.submissions.delete(old.id)
    assert [entry.submission_id for entry in bench.store.boards.top(POLE)] == [new.id]


def test_what_waited_beyond_its_season_is_given_back(idle):
    made = idle.send(AGENT)
    idle.store.seasons.end(made.season_id)
    idle.work()
    done = idle.until(made)
    assert (done.state, idle.store.quotas.used("ann")) == (State.FAILED, (0, 0))
    assert "the season ended" in done.reason


# ---- the platform's faults ----


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(jobs_module, "BACKOFF_S", 0.01)
    monkeypatch.setattr(workers_module, "LOOK_S", 0.01)


def test_the_platforms_fault_is_tried_again_and_then_gives_the_quota_back(idle, hasty, monkeypatch):
    def lost(*args, **more):
        raise EvaluationVoid("the agent's box was lost", retry=Retry.SAFE)

    monkeypatch.setattr(module.evaluate, "evaluate_on", lost)
    idle.work()
    done = idle.until(idle.send(AGENT))
    assert done.state is State.FAILED
    assert "the platform could not evaluate it" in done.reason
    assert f"job {done.job_id}" in done.reason
    assert "box" not in done.reason
    assert idle.queue.get(done.job_id).reason == "the agent's box was lost"
    assert idle.store.quotas.used("ann") == (0, 0)
    assert Counter((seen.step, seen.fault) for seen in idle.seen) == {("started", ""): 3, ("failed", "platform"): 1}
    assert idle.queue.get(done.job_id).state is JobState.DEAD
    monkeypatch.undo()
    assert idle.queue.revive(done.job_id)
    ranked = idle.until(done, State.RANKED)
    assert ranked.score is not None


def test_one_fault_of_the_platform_is_not_seen_by_the_owner(idle, hasty, monkeypatch):
    run, faults = module.script.run, [BoxLost("the box was lost")]

    def once(*args, **more):
        if faults:
            raise faults.pop()
        return run(*args, **more)

    monkeypatch.setattr(module.script, "run", once)
    idle.work()
    made = idle.send(SCRIPT)
    done = idle.until(made)
    assert (done.state, done.reason, idle.queue.get(made.job_id).attempts) == (State.RANKED, "", 2)
    told = [notice.body["state"] for notice in idle.store.events.after(0, topic=f"submission:{made.id}")]
    assert told == ["received", "checked", "queued", "running", "queued", "running", "ranked"]


def test_a_platform_fault_leaves_an_earlier_score_alone(bench, hasty, monkeypatch):
    ranked = bench.until(bench.send(AGENT))

    def broken(*args, **more):
        raise EvaluationVoid("the game is broken", retry=Retry.NEVER)

    monkeypatch.setattr(module.evaluate, "evaluate_on", broken)
    bench.store.environments.put(POLE, EnvironmentKind.VERIFIED, settings={"episodes": 2})
    failed = bench.until(bench.submissions.reevaluate(ranked.id))
    assert (failed.state, failed.score) == (State.FAILED, ranked.score)
    assert bench.store.boards.top(POLE)[0].submission_id == ranked.id
    assert bench.store.quotas.used("ann") == (1, 0)


def test_code_that_is_missing_is_the_platforms_fault(idle, hasty):
    made = idle.send(AGENT)
    idle.files.retire(made.digest)
    idle.files.purge(made.digest)
    idle.work()
    done = idle.until(made)
    assert (done.state, idle.store.quotas.used("ann")) == (State.FAILED, (0, 0))
    assert idle.queue.get(done.job_id).attempts == 3


def test_a_clean_stop_gives_an_evaluation_back_to_the_queue(bench):
    made = bench.send(SLOW)
    bench.until(made, State.RUNNING)
    bench.workers.stop(0.05)
    found = bench.store.submissions.get(made.id)
    assert (found.state, bench.queue.get(found.job_id).attempts) == (State.QUEUED, 0)
