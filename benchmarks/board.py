"""The top of a large board: how long a read takes, by filter and sort.

python benchmarks/board.py [--rows 1000000] [--reads 1000] [--database URL] [--json]

The database is an SQLite file that is removed afterwards, unless a URL names another. One that has entries already is
read as it is.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harena.arena.db import models
from harena.arena.db.models import EnvironmentKind, State, SubmissionKind
from harena.arena.db.records import Filter, Sort
from harena.arena.db.store import Store

ENV = "CartPole-v1"
PER_OWNER = 10
BATCH = 20_000
ANONYMOUS = 10
"""Every so manieth owner is without a key, and has a mark."""
QUERIES: dict[str, tuple[Filter, Sort]] = {
    "top 50": (Filter(), Sort.SCORE_DESC),
    "newest 50": (Filter(), Sort.DATE_DESC),
    "oldest 50": (Filter(), Sort.DATE_ASC),
    "one user": (Filter(user="owner 77"), Sort.SCORE_DESC),
    "one algorithm": (Filter(algorithm="A3"), Sort.SCORE_DESC),
    "one algorithm, newest": (Filter(algorithm="A3"), Sort.DATE_DESC),
    "scores 0.4 to 0.6": (Filter(score_min=0.4, score_max=0.6), Sort.SCORE_DESC),
    "last tenth of the time": (Filter(date_from=900.0), Sort.SCORE_DESC),
    "last thousandth of the time": (Filter(date_from=999.0), Sort.SCORE_DESC),
    "one user, one algorithm": (Filter(user="owner 77", algorithm="A3"), Sort.SCORE_DESC),
    "one user, half of the time": (Filter(user="owner 77", date_from=500.0), Sort.DATE_DESC),
    "a name that 10,000 owners share": (Filter(user="anonymous"), Sort.SCORE_DESC),
    "… one algorithm, half of the time": (Filter(user="anonymous", algorithm="A3", date_from=500.0), Sort.SCORE_DESC),
    "one algorithm, last tenth of the time": (Filter(algorithm="A3", date_from=900.0), Sort.SCORE_DESC),
    "one algorithm, one day": (Filter(algorithm="A3", date_from=500.0, date_to=501.0), Sort.DATE_DESC),
}


FILTERED = [
    name for name, (where, _) in QUERIES.items() if where.user or where.algorithm or where.dates != (None, None)
]


def entries(rows: int) -> Iterator[list[dict[str, Any]]]:
    rng = random.Random(4)
    for start in range(0, rows, BATCH):
        yield [
            {
                "id": f"{n:032x}",
                "owner_id": f"{n // PER_OWNER:032x}",
                "env_id": ENV,
                "algorithm": f"A{n % PER_OWNER}",
                "main_file": "agent.py",
                "digest": f"{n:064x}",
                "version": 1,
                "kind": SubmissionKind.VERIFIED,
                "state": State.RANKED,
                "reason": "",
                "score": rng.random(),
                "created_at": rng.random() * 1000,
                "updated_at": 0.0,
            }
            for n in range(start, min(start + BATCH, rows))
        ]


def owner_name(number: int) -> str:
    return f"anonymous#{number:08x}" if number % ANONYMOUS == 0 else f"owner {number}"


def fill(store: Store, rows: int) -> None:
    store.environments.put(ENV, EnvironmentKind.VERIFIED)
    place = ("env_id", "kind", "owner_id", "algorithm", "score")
    for batch in entries(rows):
        owners = {row["owner_id"]: owner_name(int(row["owner_id"], 16)) for row in batch}
        with store.begin() as connection:
            owner_rows = [{"id": key, "name": name, "created_at": 0.0} for key, name in owners.items()]
            connection.execute(models.owners.insert(), owner_rows)
            connection.execute(models.submissions.insert(), batch)
            connection.execute(
                models.board.insert(),
                [
                    {name: row[name] for name in place} | {"submission_id": row["id"], "at": row["created_at"]}
                    for row in batch
                ],
            )


def read_ms(store: Store, where: Filter, sort: Sort, reads: int) -> dict[str, float]:
    times: list[float] = []
    for _ in range(reads):
        start = time.perf_counter()
        store.boards.top(ENV, where=where, sort=sort, limit=50)
        times.append((time.perf_counter() - start) * 1000)
        if sum(times) > 10_000:
            break
    times.sort()
    return {"median_ms": times[len(times) // 2], "p99_ms": times[int(len(times) * 0.99)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--database", metavar="URL", help="instead of a file of its own")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(args.database or f"sqlite:///{Path(folder)}/board.db")
        if not store.boards.top(ENV, limit=1):
            fill(store, args.rows)
            with store.begin() as connection:
                connection.exec_driver_sql("ANALYZE")
        found = {name: read_ms(store, where, sort, args.reads) for name, (where, sort) in QUERIES.items()}
        store.close()
    if args.json:
        print(json.dumps(found))
        return
    for name, times in found.items():
        print(f"{name:40} median {times['median_ms']:8.2f} ms   p99 {times['p99_ms']:8.2f} ms")


if __name__ == "__main__":
    main()
