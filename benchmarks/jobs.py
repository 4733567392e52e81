"""Jobs a second through the job table, on SQLite or on the database of a URL, which gets jobs of these kinds and keeps
them. Every claim is checked: none is given out twice.

python benchmarks/jobs.py [--jobs 20000] [--claimers 4] [--url postgresql://…] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time

from harena.arena.db.database import Database
from harena.arena.db.jobs import Queue

CLAIMER = """
import sys
from harena.arena.db.database import Database
from harena.arena.db.jobs import Queue
database = Database(sys.argv[1])
queue, taken = Queue(database), []
queue.claim("warm", "w")
print("ready", flush=True)
sys.stdin.readline()
while job := queue.claim("claim", sys.argv[2]):
    taken.append(job.id)
print(*taken, flush=True)
database.close()
"""


def check(taken: list[int], expected: int) -> None:
    if not len(taken) == len(set(taken)) == expected:
        raise SystemExit(f"{len(taken)} claims of {len(set(taken))} jobs, {expected} were there")


def threads(queue: Queue, kind: str, jobs: int, claimers: int, *, finish: bool) -> float:
    taken: list[int] = []

    def work(name: str) -> None:
        while job := queue.claim(kind, name):
            taken.append(job.id)
            if finish:
                queue.finish(job)

    workers = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(claimers)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - start
    check(taken, jobs)
    return jobs / took


def processes(url: str, jobs: int, claimers: int) -> float:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, url, f"process {n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(claimers)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    start = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    taken: list[int] = []
    for worker in workers:
        assert worker.stdout is not None
        taken += map(int, worker.stdout.readline().split())
    took = time.perf_counter() - start
    for worker in workers:
        worker.communicate()
    check(taken, jobs)
    return jobs / took


def measure(url: str, jobs: int, claimers: int) -> dict[str, float]:
    database = Database(url)
    queue = Queue(database)
    payloads = [{"submission": f"{n:032x}"} for n in range(jobs)]
    start = time.perf_counter()
    queue.enqueue_many("claim", payloads)
    found = {"enqueue in bulk": jobs / (time.perf_counter() - start)}
    start = time.perf_counter()
    for payload in payloads[:2000]:
        queue.enqueue("single", payload)
    found["enqueue one by one"] = len(payloads[:2000]) / (time.perf_counter() - start)
    found[f"claim, {claimers} threads"] = threads(queue, "claim", jobs, claimers, finish=False)
    queue.enqueue_many("claim", payloads)
    found[f"claim, {claimers} processes"] = processes(url, jobs, claimers)
    queue.enqueue_many("both", payloads)
    found[f"claim and finish, {claimers} threads"] = threads(queue, "both", jobs, claimers, finish=True)
    database.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--claimers", type=int, default=4)
    parser.add_argument("--url", metavar="URL", help="a PostgreSQL database (a new SQLite file)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.url or f"sqlite:///{folder}/jobs.db", args.jobs, args.claimers)
    if args.json:
        print(json.dumps({name: round(value) for name, value in found.items()}))
        return
    for name, value in found.items():
        print(f"{name:32} {value:10,.0f} /s")


if __name__ == "__main__":
    main()
