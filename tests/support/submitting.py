"""An arena without HTTP, which submissions are sent to."""

from __future__ import annotations

import dataclasses
import time

from harena.arena.db.files import FileStore
from harena.arena.db.models import ACTIVE, EnvironmentKind
from harena.arena.db.store import Store
from harena.arena.queue.kinds import BY_NAME, DESK, KINDS, MATCH
from harena.arena.queue.workers import JobWorkers
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload
from harena.arena.submissions.service import Submissions
from harena.arena.work import handlers
from harena.arena.work.perform import Bench as PlayBench

POLE, TIC, OTHER = "CartPole-v1", "tictactoe-v1", "my-simulator"
AGENT = b"print('hello')\ndef act(observation): return int(observation[2] > 0)\n"
SOON_S = 30.0


class Bench:
    """An arena in a folder: all of it but HTTP."""

    def __init__(self, folder, runner):
        self.settings = Settings.from_env(folder, {})
        self.store = Store(self.settings.database_url)
        self.queue = self.store.jobs
        self.files = FileStore(self.settings.files)
        quick = {"episodes": 3, "practice_episodes": 2, "final_episodes": 4, "move_s": 5.0}
        for env_id, kind in (
            (POLE, EnvironmentKind.VERIFIED),
            (TIC, EnvironmentKind.LADDER),
            (OTHER, EnvironmentKind.SCRIPT_ONLY),
        ):
            self.store.environments.put(env_id, kind, settings=quick)
            self.store.seasons.start(env_id, "season 1")
        self.runner = runner
        self.submissions = Submissions(self.store, self.queue, self.files, self.settings)
        self.bench = PlayBench(runner=runner)
        self.seen = []
        self.submissions.observers.append(self.seen.append)
        self.workers = None

    def work(self):
        self.workers = JobWorkers(
            self.store,
            self.queue,
            handlers={kind.name: handlers.handler(self, kind) for kind in KINDS if kind not in (MATCH, DESK)},
            slots={"evaluate": 2, "script": 1, "enter": 1, "final": 1},
            on_dead=lambda job: BY_NAME[job.kind].given_up(self)(job),
            on_requeued=self.submissions.requeued,
            alone=True,
        )
        self.workers.start()

    def with_settings(self, **changed):
        settings = dataclasses.replace(self.settings, **changed)
        self.submissions = Submissions(self.store, self.queue, self.files, settings)
        self.bench = PlayBench(runner=self.runner, pulls=settings.pull_policy)

    def send(self, *sources, env_id=POLE, owner="ann", **more):
        names = [f"part{number}.py" if number else "agent.py" for number in range(len(sources))]
        uploads = [Upload(name=name, data=data) for name, data in zip(names, sources, strict=True)]
        return self.submissions.submit(uploads, owner=owner, env_id=env_id, **more)

    def until(self, submission, *states):
        """Until it is over, or in one of these states."""
        end = time.monotonic() + SOON_S
        while True:
            found = self.store.submissions.get(submission.id)
            if found.state in states or (not states and found.state not in ACTIVE):
                return found
            assert time.monotonic() < end, f"still {found.state}"
            time.sleep(0.01)

    def close(self):
        if self.workers is not None:
            self.workers.stop(0)
        self.store.close()

    def stored(self):
        return sorted(one.digest for one in self.files.kept())
