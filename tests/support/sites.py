"""An arena without workers of its own behind a real socket, and workers in processes that pull jobs from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import msgspec

from harena.api.app import create_app
from harena.arena.arena import Arena, Roles
from harena.arena.db.models import Scope
from harena.arena.settings import Settings
from harena.http.limits import RequestLimits
from support.served import AGENT, ENV, LADDER, Server, bearer, upload

SOON_S = 60.0
NAME = "laptop"


class Site:
    """An arena without workers of its own, behind a real socket."""

    def __init__(self, folder, **roles):
        settings = Settings.from_env(folder, {}, anonymous_submit=True)
        self.arena = Arena(settings, Roles(workers=False, **roles))
        self.arena.put_environment(ENV, settings={"episodes": 2, "practice_episodes": 1})
        self.arena.put_environment(LADDER, settings={"games_target": 2})
        self.arena.start()
        limits = RequestLimits()
        self.server = Server(create_app(self.arena, loopback=True, limits=limits), limits)

    def __enter__(self):
        self.server.__enter__()
        self.client = self.server.client()
        return self

    def __exit__(self, *exc):
        self.client.close()
        self.server.__exit__()
        self.arena.stop(0)

    def key(self, *scopes, owner="host"):
        return self.arena.store.keys.create(owner, scopes or [Scope.WORKER])[1]

    def send(self, data=AGENT, env_id=ENV, **more):
        answer = upload(self.client, data=data, env_id=env_id, **more)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def post(self, token, path, **more):
        return self.client.post(f"/v1/worker{path}", headers=bearer(token), **more)

    def claim(self, token, name=NAME, **more):
        answer = self.post(token, "/claim", json={"name": name, **more})
        if answer.status_code == 204:
            return None
        assert answer.status_code == 200, answer.text
        return msgspec.msgpack.decode(answer.content)

    def state(self, submission_id):
        return self.arena.store.submissions.get(submission_id).state


def until(what):
    end = time.monotonic() + SOON_S
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def worker(site, *options, token=None):
    command = [sys.executable, "-m", "harena", "worker", "--server", site.server.url, "--slots", "1"]
    process = subprocess.Popen(
        [*command, "--metrics-port", "off", "--name", NAME, *options],
        env={**os.environ, "PYTHONFAULTHANDLER": "1", "HARENA_TOKEN": token or site.key()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process


def ended(process):
    try:
        out, err = process.communicate(timeout=SOON_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        out, err = process.communicate(timeout=SOON_S)
        raise AssertionError(err) from None
    return process.returncode, out, err
