"""Measures the arena on several processes: PostgreSQL, Redis and Celery of its own, replicas and workers.

    python benchmarks/replicas.py [--quick] [--only claims,submit,workers,lost,browser]

Each goal of the table in docs/benchmarks.md is a row. Needs Debian's postgresql and redis-server, and Chromium for the
row of the browser.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import browser  # pyright: ignore[reportMissingImports]
import jobs as jobs_bench
import servers  # pyright: ignore[reportMissingImports]

import arena as arena_bench
from harena.arena.db.models import JobState, Scope
from harena.arena.db.store import Store
from harena.arena.work.dispatch import LEASE_S
from harena.client import ArenaClient
from harena.sandbox.bench import Row, table

AGENT, ENV = arena_bench.AGENT, arena_bench.ENV
SLOW = b"import time\ndef act(observation):\n    time.sleep(0.05)\n    return 0\n"
QUIET = ("--no-demo", "--no-workers")
servers.SETTINGS |= {
    "fsync": "on",
    "shared_buffers": "128MB",
}  # as PostgreSQL itself sets them


class Site:
    """A database, and what its processes need to know."""

    def __init__(self, folder: Path, postgres: Any, **more: str) -> None:
        self.folder = folder
        self.database_url: str = postgres.emptied()
        self.env = {
            "DATABASE_URL": self.database_url,
            "SECRET_KEY": "only for benchmarks, 16 bytes or more",
            "HARENA_AT_ONCE": "0",
            "HARENA_PER_DAY": "0",
            **more,
        }

    @contextlib.contextmanager
    def replica(self, *options: str) -> Generator[str]:
        with arena_bench.serving(self.folder, *QUIET, *options, env=self.env) as url:
            yield url

    def token(self) -> str:
        store = Store(self.database_url)
        try:
            return store.keys.create("bench", [Scope.WORKER])[1]
        finally:
            store.close()

    @contextlib.contextmanager
    def worker(self, *options: str, core: int | None = None, token: str = "") -> Generator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "harena", "worker", "--metrics-port", "off", "--data", str(self.folder)]
        env = os.environ | self.env | ({"HARENA_TOKEN": token} if token else {})
        pinned = None if core is None else (lambda: os.sched_setaffinity(0, {core}))
        process = subprocess.Popen(
            [*command, *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=pinned
        )
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("harena worker did not start")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    @contextlib.contextmanager
    def store(self) -> Generator[Store]:
        store = Store(self.database_url)
        try:
            yield store
        finally:
            store.close()


@contextlib.contextmanager
def site(*, redis: bool = False, celery: bool = False) -> Generator[Site]:
    found = servers.programs()
    if found is None:
        raise SystemExit("no PostgreSQL here: apt-get install postgresql")
    with contextlib.ExitStack() as stack:
        postgres = servers.Postgres(found)
        stack.callback(postgres.close)
        more: dict[str, str] = {}
        if redis or celery:
            cache = servers.Redis()
            stack.callback(cache.close)
            more |= {"REDIS_URL": cache.url} | ({"CELERY_BROKER_URL": cache.url} if celery else {})
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield Site(folder, postgres, **more)


def claims(quick: bool) -> list[Row]:
    with site() as found:
        with found.store():
            pass  # makes the tables
        rates = jobs_bench.measure(found.database_url, 4000 if quick else 20_000, 8)
    return [
        Row("job claims on PostgreSQL, 8 processes, none twice", rates["claim, 8 processes"], "/s", 2000, 5000, True),
        Row("… 8 threads", rates["claim, 8 threads"], "/s", None, None, True),
    ]


def ranked(client: ArenaClient, times: int) -> float:
    """Seconds from the first byte of an upload to the answer that says ranked, the median."""
    taken: list[float] = []
    for number in range(times + 1):
        code = AGENT.read_bytes() + b"# %d\n" % number  # code that was evaluated before keeps its result
        started = time.perf_counter()
        made = client.submit(code, env_id=ENV, algorithm=f"Balance {number}")
        ended = client.wait(made.id, timeout_s=60)
        taken.append(time.perf_counter() - started)
        if ended.state != "ranked":
            raise RuntimeError(f"the submission is {ended.state}")
        time.sleep(0.2)
    return statistics.median(taken[1:])


def prepare(client: ArenaClient) -> None:
    client.put_environment(ENV)


def submit(quick: bool) -> list[Row]:
    times, rows = (3 if quick else 11), list[Row]()
    with site() as found, found.replica() as url:
        token = found.token()
        with ArenaClient(url, key=arena_bench.host_key(found.folder)) as client:
            prepare(client)
            with found.worker("--server", url, token=token):
                took = ranked(client, times)
        rows.append(Row("submit to ranked, PostgreSQL and a worker over HTTP", took, "s", 1.5, 0.6))
    with site(celery=True) as found, found.replica() as url:
        with ArenaClient(url, key=arena_bench.host_key(found.folder)) as client:
            prepare(client)
            with found.worker("--celery"):
                took = ranked(client, times)
        rows.append(Row("submit to ranked, Celery and Redis", took, "s", 1.5, 0.6))
    return rows


def drained(client: ArenaClient, found: Site, count: int, mark: str) -> float:
    """Evaluations a second, from the first that is done to the last of a queue that was there before."""
    made = [
        client.submit(AGENT.read_bytes() + f"# {mark} {number}\n".encode(), env_id=ENV).id for number in range(count)
    ]
    with found.store() as store:
        while any(
            store.submissions.get(one).state.value in ("received", "checked", "queued", "running") for one in made
        ):
            time.sleep(0.05)
        ends = sorted(store.submissions.get(one).updated_at for one in made)
    return (len(ends) - 1) / (ends[-1] - ends[0])


def workers(quick: bool) -> list[Row]:
    """The queue is long and every worker has one core. The API, the database and this process have the same two."""
    count, rounds = (8, 1) if quick else (24, 3)
    ratios: list[float] = []
    with site() as found, found.replica() as url:
        token = found.token()
        with ArenaClient(url, key=arena_bench.host_key(found.folder)) as client:
            prepare(client)
            for number in range(rounds):
                with found.worker("--server", url, "--slots", "1", core=0, token=token):
                    alone = drained(client, found, count, f"one {number}")
                    with found.worker("--server", url, "--slots", "1", core=1, token=token):
                        both = drained(client, found, 2 * count, f"two {number}")
                ratios.append(both / alone)
    return [Row("two workers with one core each, against one", statistics.median(ratios), "x", 1.7, 1.95, True)]


def lost(quick: bool) -> list[Row]:
    """A worker is killed with -9 while it has a job. Its lease says when the job may be given out again."""
    with site() as found, found.replica() as url:
        token = found.token()
        with ArenaClient(url, key=arena_bench.host_key(found.folder)) as client, found.store() as store:
            prepare(client)
            with found.worker("--server", url, "--slots", "1", token=token) as first:
                made = client.submit(SLOW, env_id=ENV)
                while not (running := store.jobs.running()):
                    time.sleep(0.01)
                first.kill()
                killed = time.time()
            fence = running[0].fence
            with found.worker("--server", url, "--slots", "1", token=token):
                while True:
                    job = store.jobs.get(running[0].id)
                    if job.fence > fence and job.state is JobState.RUNNING:
                        break
                    time.sleep(0.01)
                took = time.time() - killed
            client.cancel(made.id)
    return [Row(f"lost worker's job runs again after (lease {LEASE_S:g} s)", took, "s", LEASE_S + 2, None)]


def seen(quick: bool) -> list[Row]:
    """The page is open on another replica than the one that takes the result."""
    if why := browser.missing():
        print(f"no browser: {why}", file=sys.stderr)
        return []
    delays: list[float] = []
    with site(redis=True) as found, found.replica() as one, found.replica() as other, browser.started() as page:
        token = found.token()
        with (
            ArenaClient(one, key=arena_bench.host_key(found.folder)) as client,
            found.worker("--server", one, token=token),
            found.store() as store,
        ):
            prepare(client)
            page.open(f"{other}/env/{ENV}")
            for number in range(3 if quick else 9):
                algorithm = f"Seen {number}"
                page.js(arena_bench.WATCH.replace("TEXT", f'"{algorithm}"'))
                code = AGENT.read_bytes() + b"# seen %d\n" % number
                made = client.submit(code, env_id=ENV, algorithm=algorithm)
                client.wait(made.id, timeout_s=60)
                delays.append(arena_bench.found_at(page) / 1000 - store.submissions.get(made.id).updated_at)
    took_ms = statistics.median(delays) * 1e3
    return [Row("result stored to seen by a browser on another replica", took_ms, "ms", 400, 120)]


PARTS = {"claims": claims, "submit": submit, "workers": workers, "lost": lost, "browser": seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    only = tuple(name for name in args.only.split(",") if name)
    rows: list[Row] = []
    for name, part in PARTS.items():
        if not only or name in only:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            rows += part(args.quick)
    print(table(rows))


if __name__ == "__main__":
    main()
