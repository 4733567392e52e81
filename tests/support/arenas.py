"""A real arena with agents that play, behind the real app on a free port."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import urllib.request
from pathlib import Path

import uvicorn

from harena.api.app import create_app
from harena.arena.arena import Arena
from harena.arena.db.models import Scope, State
from harena.arena.db.records import DefaultQuota
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload

ENV, LADDER = "CartPole-v1", "tictactoe-v1"
FREE = "[cell for cell in range(9) if observation[cell] == 0]"
FIRST = f"def act(observation):\n    return {FREE}[0]\n"
LAST = f"def act(observation):\n    return {FREE}[-1]\n"
MIDDLE = f"def act(observation):\n    free = {FREE}\n    return 4 if 4 in free else free[0]\n"
SLOW = f"import time\ndef act(observation):\n    time.sleep(0.5)\n    return {FREE}[0]\n"
BALANCE = "def act(observation):\n    x, v, angle, turn = observation\n    return int(angle + 0.6 * turn > 0)\n"
LEAN = "def act(observation):\n    return int(observation[2] > 0)\n"


class Site:
    """`port` 0: any free one."""

    def __init__(self, arena, port=0):
        self.arena = arena
        self.app = create_app(arena, loopback=True)
        config = uvicorn.Config(
            self.app, host="127.0.0.1", port=port, log_level="warning", ws="none", timeout_graceful_shutdown=3
        )
        self._server = uvicorn.Server(config)
        self._socket = config.bind_socket()
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *exc):
        self.app.state.api.live.close()
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        assert not self._thread.is_alive()

    def get(self, path):
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url + path, timeout=10) as answer:
            return json.load(answer)

    # ---- what is there ----

    def submit(self, code, *, owner="ann", algorithm="Custom", env_id=ENV, state=State.RANKED):
        """And waits until it has come to that state."""
        upload = [Upload(name="agent.py", data=code.encode())]
        made = self.arena.submissions.submit(upload, owner=owner, env_id=env_id, algorithm=algorithm)
        return self.wait(lambda: self._in_state(made.id, state))

    def _in_state(self, submission_id, state):
        found = self.arena.store.submissions.get(submission_id)
        return found if found.state is state else None

    def key(self, owner, *scopes):
        return self.arena.store.keys.create(owner, scopes or (Scope.READ, Scope.SUBMIT))[1]

    @staticmethod
    def wait(look, timeout_s=60.0):
        end = time.monotonic() + timeout_s
        while not (found := look()):
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)
        return found


@contextlib.contextmanager
def running(folder: Path):
    """Two environments with agents in both, and the first games played."""
    settings = Settings(
        data=folder,
        database_url=f"sqlite:///{folder}/arena.db",
        secret_key=b"only for tests " * 3,
        workers=1,
        anonymous_submit=True,
        quota=DefaultQuota(per_day=None, at_once=None),
    )
    with Arena(settings) as arena, Site(arena) as site:
        text = {"summary": "A pole on a cart.", "rules": "Keep it up.", "sample_agent": BALANCE}
        arena.put_environment(ENV, settings={"title": "CartPole", "episodes": 3, "practice_episodes": 2, **text})
        together = {"owners_meet": True, "agents_per_owner": 0}
        arena.put_environment(
            LADDER, settings={"title": "Tic-tac-toe", "games_target": 3, "upkeep_s": 3600.0, **together}
        )
        site.submit(BALANCE, algorithm="Balance")
        site.submit(LEAN, algorithm="Lean", owner="bob")
        for algorithm, code in {"First": FIRST, "Last": LAST, "Middle": MIDDLE}.items():
            site.submit(code, algorithm=algorithm, env_id=LADDER)
        site.wait(lambda: len(site.get(f"/v1/matches?env_id={LADDER}&state=finished")["matches"]) >= 3)
        site.wait(lambda: len(site.get(f"/v1/boards?env_id={LADDER}")["entries"]) == 3)
        yield site


if __name__ == "__main__":  # to look at: python tests/support/arenas.py FOLDER
    with running(Path(sys.argv[1])) as shown:
        print(shown.url, shown.key("host", Scope.ADMIN), flush=True)
        threading.Event().wait()
