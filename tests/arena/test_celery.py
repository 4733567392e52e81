"""Celery rings, the job table decides: lost, doubled and late messages change nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support import servers
from support.entries import ENV
from support.killable import until

pytest.importorskip("gymnasium")
pytest.importorskip("celery", reason="no Celery here: pip install 'harena[celery]'")

from harena.api.worker import celery_bell
from harena.arena.arena import Arena, Roles
from harena.arena.db.models import State
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.errors import SpecError

pytestmark = pytest.mark.services

BUSY_S = 420.0
"""Workers are processes that start anew, maybe beside a heavy load."""
SECRET = "only for tests, and 16 bytes at least"
AGENT = b"def act(observation): return int(observation[2] + observation[3] > 0)\n"


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request):
    if request.param == "redis":
        yield request.getfixturevalue("redis")
        return
    if not servers.RabbitMQ.PROGRAM.exists():
        pytest.skip("no RabbitMQ here: apt-get install rabbitmq-server")
    server = servers.RabbitMQ()
    yield server
    server.close()


@pytest.fixture
def site(tmp_path, postgres_url, broker):
    """An arena without workers that rings, and a way to start workers that are called."""
    environ = {
        "DATABASE_URL": postgres_url,
        "SECRET_KEY": SECRET,
        "HARENA_WORKERS": "1",
        "CELERY_BROKER_URL": broker.url,
    }
    arena = Arena(Settings.from_env(tmp_path, environ), Roles(workers=False))
    arena.put_environment(ENV, settings={"episodes": 2, "practice_episodes": 1})
    arena.start()
    bell = celery_bell.CeleryBell(arena, broker.url)
    bell.start()
    crew = []

    def work():
        process = subprocess.Popen(
            [sys.executable, "-m", "harena", "worker", "--celery", "--metrics-port", "off", "--data", tmp_path],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        crew.append(process)
        assert "Celery" in process.stdout.readline()
        return process

    def send(number):
        upload = Upload(name="a.py", data=AGENT + b"#%d\n" % number)
        return arena.submissions.submit([upload], owner="ann", env_id=ENV, algorithm=f"A{number}").id

    arena.work, arena.send, arena.bell = work, send, bell
    yield arena
    for process in crew:
        if process.poll() is None:
            process.kill()
        process.communicate()
    bell.stop()
    arena.stop(0)


def ring(broker, times):
    app = celery_bell.celery_app(broker.url)
    for _ in range(times):
        app.send_task(celery_bell.TASK)
    app.close()


def ranked(arena, *sent):
    return all(arena.store.submissions.get(one).state is State.RANKED for one in sent)


@pytest.mark.timeout(1200)
def test_a_worker_that_celery_calls_does_jobs_also_when_the_broker_was_lost_with_all_messages(site, broker):
    process = site.work()
    first = site.send(1)
    until(lambda: ranked(site, first), BUSY_S)
    broker.kill()
    second = site.send(2)
    broker.start()
    until(lambda: ranked(site, first, second), BUSY_S)
    ring(broker, 20)  # nothing to do: nothing happens
    third = site.send(3)
    until(lambda: ranked(site, third), BUSY_S)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=BUSY_S)
    assert process.returncode == 0, err
    assert [len(site.store.submissions.evaluations(one)) for one in (first, second, third)] == [1, 1, 1]


@pytest.mark.timeout(1200)
def test_doubled_early_and_late_messages_to_two_workers_evaluate_nothing_twice(site, broker):
    ring(broker, 10)
    first, second = site.work(), site.work()
    sent = []
    for number in range(4):
        sent.append(site.send(number))
        ring(broker, 5)
    until(lambda: ranked(site, *sent), BUSY_S)
    ring(broker, 10)
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=BUSY_S)
        assert process.returncode == 0, err
    assert [len(site.store.submissions.evaluations(one)) for one in sent] == [1] * 4
    assert all(site.queue.get(site.store.submissions.get(one).job_id).fence == 1 for one in sent)


@pytest.mark.timeout(1200)
def test_what_no_message_announced_is_sent_again_by_the_sweeper(site, broker, monkeypatch):
    site.bell._stop_listening()  # a process that commits, and dies before it rings
    sent = site.send(1)
    process = site.work()
    until(lambda: ranked(site, sent), BUSY_S)
    process.kill()


@pytest.mark.parametrize("url", ["", "http://x", "sqs://", "memory://"])
def test_another_broker_is_refused(url):
    with pytest.raises(SpecError, match="redis://"):
        celery_bell.celery_app(url)
