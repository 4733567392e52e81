"""Workers on other machines pull jobs over HTTP. A worker's key opens its own jobs and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from support.served import AGENT, ENV, LADDER, SCRIPT, bearer, upload
from support.sites import NAME, SOON_S, Site, ended, until, worker

pytest.importorskip("gymnasium")

from harena.arena.db.models import JobState, Scope, State
from harena.arena.work import dispatch, orders

PLAYER = b"def act(observation):\n    return [cell for cell in range(9) if observation[cell] == 0][0]\n"


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path / "arena", matchmaker=False) as site:
        yield site


def of(given, name=NAME, **changed):
    return {"name": name, "fence": given["fence"], **changed}


# ---- working ----


def test_a_worker_elsewhere_evaluates_verified_agents_scripts_and_ladders(tmp_path):
    with Site(tmp_path / "arena") as site:
        sent = [site.send(), site.send(SCRIPT, name="script.py", kind="script")]
        sent += [site.send(PLAYER + b"#%d" % n, LADDER, user_id=f"owner{n}") for n in range(2)]
        process = worker(site)
        try:
            until(lambda: all(site.state(one) is State.RANKED for one in sent))
            until(lambda: site.arena.queue.counts().get(("match", JobState.DONE), 0) >= 1)
        finally:
            process.send_signal(signal.SIGTERM)
            code, out, err = ended(process)
        assert (code, "Traceback" in err) == (0, False), err
        assert "environments: " in out
        boards = [
            site.client.get("/v1/boards", params={"env_id": ENV, "board": kind}).json()
            for kind in ("verified", "self-reported")
        ]
        assert [board["total"] for board in boards] == [1, 1]
        report = site.arena.store.draws.practice(sent[0])
        assert len(report["episodes"]) == 1
        assert not site.arena.queue.running()


def test_an_order_has_seeds_of_its_own_episodes_and_no_secret_key_or_owner(site):
    site.send(user_id="ann-with-a-rare-name")
    given = site.claim(site.key())
    order = orders.decode_order(given["order"])
    season = site.arena.store.seasons.live(ENV)
    assert len(order.hidden.seeds) == 2
    for secret in (site.arena.store.seasons.secret(season.id), site.arena.settings.secret_key):
        assert secret not in given["order"]
        assert secret.hex().encode() not in given["order"]


def test_a_worker_waits_for_a_job_and_gets_it_at_once(site):
    token, got = site.key(), []
    waiting = threading.Thread(target=lambda: got.append(site.claim(token, wait_s=30)))
    waiting.start()
    time.sleep(0.3)
    sent = site.send()
    waiting.join(SOON_S)
    assert site.arena.queue.get(got[0]["job_id"]).payload["submission_id"] == sent


def test_a_worker_gets_only_kinds_and_environments_that_it_asked_for(site):
    token = site.key()
    site.send(PLAYER, LADDER)
    assert site.claim(token, environments=[ENV]) is None
    assert site.claim(token, kinds=["evaluate", "match"]) is None
    assert site.claim(token, environments=[LADDER])["kind"] == "enter"


def test_a_worker_that_is_told_to_stop_finishes_what_it_does(site):
    slow = b"import time\ndef act(observation):\n    time.sleep(0.02)\n    return 0\n"
    sent = site.send(slow)
    process = worker(site, "--json-logs")
    assert "started" in process.stderr.readline()
    site.send(slow + b"#2")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    assert site.state(sent) is State.RANKED
    counts = site.arena.queue.counts()
    assert counts == {("evaluate", JobState.DONE): 1, ("evaluate", JobState.QUEUED): 1}


def test_a_worker_that_is_told_twice_gives_back_what_it_does(site):
    sent = site.send(b"import time\ndef act(observation):\n    time.sleep(3)\n    return 0\n")
    process = worker(site, "--json-logs")
    assert "started" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    job = site.arena.queue.get(site.arena.store.submissions.get(sent).job_id)
    assert (job.state, job.attempts, job.deaths, site.state(sent)) == (JobState.QUEUED, 0, 0, State.QUEUED)


def test_a_cancelled_job_is_dropped_by_its_worker(site, monkeypatch):
    monkeypatch.setattr(dispatch, "LEASE_S", 3.0)
    sent = site.send(b"import time\ndef act(observation):\n    time.sleep(1)\n    return 0\n")
    process = worker(site)
    until(lambda: site.state(sent) is State.RUNNING)
    site.arena.submissions.cancel(sent)
    after = site.send()
    until(lambda: site.state(after) is State.RANKED)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    assert site.state(sent) is State.CANCELLED


def test_a_worker_that_was_frozen_past_its_lease_has_its_late_result_refused(site, monkeypatch):
    monkeypatch.setattr(dispatch, "LEASE_S", 2.0)
    sent = site.send(b"import time\ndef act(observation):\n    time.sleep(0.05)\n    return 0\n")
    frozen = worker(site, "--json-logs")
    # The server calls a job running before the worker has read the order, and a worker that stops then gives it back.
    assert any(" started" in line for line in frozen.stderr)
    job_id = site.arena.store.submissions.get(sent).job_id
    frozen.send_signal(signal.SIGSTOP)
    until(lambda: site.arena.queue.get(job_id).state is JobState.QUEUED)
    token = site.key()
    monkeypatch.setattr(dispatch, "LEASE_S", 60.0)
    second = site.claim(token, "other")
    assert second["job_id"] == job_id
    frozen.send_signal(signal.SIGCONT)
    frozen.send_signal(signal.SIGTERM)
    code, _, err = ended(frozen)
    assert (code, site.state(sent), " lost" in err) == (0, State.RUNNING, True)
    assert site.arena.queue.get(job_id).fence == second["fence"]
    assert site.post(token, f"/jobs/{job_id}/release", params=of(second, "other")).status_code == 200


def test_a_suspect_is_given_to_a_worker_that_holds_nothing_and_then_gets_nothing_else(site):
    token = site.key()
    suspect = site.arena.queue.get(site.arena.store.submissions.get(site.send()).job_id)
    for _ in range(2):
        assert site.arena.queue.claim("evaluate", "gone").id == suspect.id
        site.arena.queue.release_all()
    other = site.send(AGENT + b"#2")
    first = site.claim(token)
    assert site.arena.queue.get(first["job_id"]).payload["submission_id"] == other
    assert site.claim(token) is None
    alone = site.claim(token, "second")
    assert alone["job_id"] == suspect.id
    site.send(AGENT + b"#3")
    assert site.claim(token, "second") is None
    assert site.claim(token) is not None


# ---- attacks ----


@pytest.mark.parametrize("scopes", [[Scope.READ], [Scope.SUBMIT], [Scope.HOST], []])
def test_other_keys_and_nobody_get_no_jobs(site, scopes):
    site.send()
    headers = bearer(site.key(*scopes, owner="ann")) if scopes else {}
    for path, more in (
        ("/claim", {"json": {"name": "x"}}),
        ("/jobs/1/result", {"content": b"", "params": {"name": "x", "fence": 1}}),
    ):
        answer = site.client.post(f"/v1/worker{path}", headers=headers, **more)
        assert answer.status_code == (403 if scopes else 401), answer.text
    assert site.client.get("/v1/worker", headers=headers).status_code in (401, 403)
    assert not site.arena.queue.running()


def test_a_workers_key_opens_nothing_but_its_jobs(site):
    headers = bearer(site.key(owner="worker-owner"))
    sent = site.send()
    for method, path in (
        ("GET", "/v1/admin/queue"),
        ("GET", f"/v1/submissions/{sent}/code"),
        ("GET", f"/v1/submissions/{sent}/log"),
        ("POST", f"/v1/submissions/{sent}/cancel"),
        ("DELETE", f"/submissions/{sent}"),
        ("POST", "/v1/admin/jobs/1/cancel"),
    ):
        assert site.client.request(method, path, headers=headers).status_code in (401, 403, 404, 405), path
    assert upload(site.client, site.key(owner="worker-owner"), env_id=ENV).status_code == 403
    more = site.client.post("/v1/keys", headers=headers, json={"scopes": ["submit"]})
    assert more.status_code == 403


def done(site, given):
    """A true answer to the order."""
    from harena.arena.work.perform import Bench, perform
    from harena.match.run.runner import Runner

    with Runner(1) as runner:
        return orders.encode(perform(orders.decode_order(given["order"]), Bench(runner=runner), lambda: False))


def test_forged_ids_fences_names_and_keys_end_nobodys_job(site):
    mine, theirs = site.key(), site.key()
    sent = site.send()
    given = site.claim(mine)
    answer, path = done(site, given), f"/jobs/{given['job_id']}"
    for token, where, query in (
        (theirs, path, of(given)),  # another worker's job
        (mine, path, of(given, "another")),
        (mine, path, of(given, fence=given["fence"] + 1)),
        (mine, "/jobs/999999", of(given)),
    ):
        for what, more in (
            ("result", {"content": answer}),
            ("failed", {"json": {"reason": "forged"}}),
            ("release", {}),
            ("heartbeat", {}),
            ("frames", {"content": b"[]"}),
        ):
            refused = site.post(token, f"{where}/{what}", params=query, **more)
            assert refused.status_code == 409, (what, refused.text)
            assert "is not yours" in refused.json()["detail"]
    assert site.state(sent) is State.RUNNING
    assert site.post(mine, f"{path}/result", params=of(given), content=answer).status_code == 200
    assert site.state(sent) is State.RANKED
    assert site.post(mine, f"{path}/result", params=of(given), content=answer).status_code == 409
    assert len(site.arena.store.submissions.evaluations(sent)) == 1


def changed(answer, **more):
    body = msgspec.msgpack.decode(answer)
    for path, value in more.items():
        *parents, name = path.split("__")
        at = body
        for parent in parents:
            at = at[parent]
        at[name] = value
    return msgspec.msgpack.encode(body)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden__returns": [1e9]},
        {"hidden__returns": [float("nan"), 1.0]},
        {"hidden__returns": [float("inf"), 1.0]},
        {"practice": None},
        {"wall_s": float("nan")},
        {"type": "script"},
        {"surprise": 1},
        {"hidden__status": "great"},
    ],
)
def test_an_answer_that_is_none_is_refused_and_the_job_tried_again(site, change):
    token, sent = site.key(), site.send()
    given = site.claim(token)
    bad = changed(done(site, given), **change)
    refused = site.post(token, f"/jobs/{given['job_id']}/result", params=of(given), content=bad)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_answer"), refused.text
    assert site.state(sent) is State.QUEUED
    assert site.arena.store.submissions.evaluations(sent) == []


def test_a_score_is_computed_from_the_returns_whatever_the_worker_says(site):
    token, sent = site.key(), site.send()
    given = site.claim(token)
    boast = changed(done(site, given), hidden__score=1e9, hidden__returns=[3.0, 5.0], hidden__season="another")
    assert site.post(token, f"/jobs/{given['job_id']}/result", params=of(given), content=boast).status_code == 200
    assert site.arena.store.submissions.get(sent).score == 4.0


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 100_000, b"{}", os.urandom(1000)])
def test_garbage_is_refused(site, body):
    token = site.key()
    site.send()
    given = site.claim(token)
    refused = site.post(token, f"/jobs/{given['job_id']}/result", params=of(given), content=body)
    assert refused.status_code == 422, refused.text


def test_an_oversized_answer_is_refused_before_it_is_read(site):
    token = site.key()
    site.send()
    given = site.claim(token)
    head = (
        f"POST /v1/worker/jobs/{given['job_id']}/result?name={NAME}&fence={given['fence']} HTTP/1.1\r\n"
        f"Host: localhost\r\nAuthorization: Bearer {token}\r\nExpect: 100-continue\r\n"
        f"Content-Length: {orders.MAX_BYTES + 1}\r\n\r\n"
    )
    with site.server.connect() as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    frames = b"[" + b" " * (600 << 10) + b"]"
    big = site.post(token, f"/jobs/{given['job_id']}/frames", params=of(given), content=frames)
    assert big.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        {"name": "../x"},
        {"name": "x" * 65},
        {"name": "x", "kinds": ["desk"]},
        {"name": "x", "kinds": []},
        {"name": "x", "wait_s": 1e9},
        {"name": "x", "more": 1},
        {},
    ],
)
def test_a_claim_of_another_form_is_refused(site, body):
    answer = site.post(site.key(), "/claim", json=body)
    assert answer.status_code == 422, answer.text


# ---- the command ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--server", "http://127.0.0.1:1", "--name", "a/b", "--token", "x"], "--name"),
        (["--server", "http://127.0.0.1:1"], "--token"),
        ([], "DATABASE_URL"),
    ],
)
def test_a_wrong_argument_is_one_line(options, words, tmp_path):
    environ = {name: value for name, value in os.environ.items() if name not in ("HARENA_TOKEN", "DATABASE_URL")}
    run = subprocess.run(
        [sys.executable, "-m", "harena", "worker", "--metrics-port", "off", "--data", tmp_path, *options],
        env=environ,
        capture_output=True,
        text=True,
        timeout=SOON_S,
    )
    assert (run.returncode, words in run.stderr, "Traceback" in run.stderr) == (2, True, False), run.stderr


def test_a_server_that_refuses_the_token_is_told_in_one_line(site):
    process = worker(site, token=site.key(Scope.READ))
    code, _, err = ended(process)
    assert (code, "scope worker" in err, "Traceback" in err) == (2, True, False), err
