"""The app behind a real socket on a free port, in a thread, and small helpers to speak to it."""

from __future__ import annotations

import json
import socket
import threading
import time

import httpx
import uvicorn

from harena.api.server import http_config
from harena.arena.db.models import Event
from harena.arena.db.records import EvaluationOutcome
from harena.http.limits import RequestLimits

ENV, LADDER = "CartPole-v1", "tictactoe-v1"
AGENT = b"def act(observation):\n    return 0\n"
SCRIPT = b'import json\nprint(json.dumps({"score": 1e9}))\n'


class Server:
    def __init__(self, app, limits=None):
        """Served as `harena up` does it."""
        self.app = app
        config = http_config(app, limits or RequestLimits(), host="127.0.0.1", port=0)
        self.server = uvicorn.Server(config)
        self.socket = config.bind_socket()
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *exc):
        self.app.state.api.live.close()
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.socket.close()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def client(self, **headers):
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def upload(client, token=None, *, path="/v1/submissions", name="agent.py", data=AGENT, headers=None, **fields):
    headers = {**(bearer(token) if token else {}), **(headers or {})}
    return client.post(path, files={"file": (name, data)}, data=fields, headers=headers)


def submitted(client, token=None, **fields):
    """The id of a new submission."""
    answer = upload(client, token, **fields)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def ranked(arena, client, token=None, *, score=1.0, **fields):
    submission_id = submitted(client, token, **fields)
    return rank(arena, submission_id, score)


def rank(arena, submission_id, score, **metrics):
    """As a worker does it."""
    with arena.store.begin():
        arena.store.submissions.move(submission_id, Event.START)
        log = arena.files.put(b"secret log of " + submission_id.encode())
        arena.store.submissions.rank(
            submission_id, EvaluationOutcome(score=score, low=score, high=score, metrics=metrics), log_digest=log
        )
    return submission_id


def failed(arena, client, token=None, *, reason="crash: the secret reason", **fields):
    submission_id = submitted(client, token, **fields)
    with arena.store.begin():
        arena.store.submissions.move(submission_id, Event.START)
        log = arena.files.put(b"secret log of " + submission_id.encode())
        arena.store.submissions.fail(submission_id, reason, platform=False, log_digest=log)
    return submission_id


def events(lines):
    """Of a stream's lines, what each event is: (id, event, data)."""
    found = {}
    for line in lines:
        if not line:
            if "data" in found:
                yield found.get("id"), found.get("event", "message"), json.loads(found["data"])
            found = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            found[name] = value
