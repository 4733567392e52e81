"""How long a newcomer waits behind others' slow agents, and whether ladders play on meanwhile. Real boxes, real time.

python benchmarks/newcomer.py [--agents 50] [--names 40] [--sleep-ms 20] [--workers 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from harena.arena.arena import Arena
from harena.arena.db.models import ACTIVE, State
from harena.arena.db.records import DefaultQuota
from harena.arena.settings import Settings
from harena.arena.submissions.intake import Upload

ENV, LADDER = "CartPole-v1", "tictactoe-v1"
BALANCE = "x, v, angle, turn = observation\n    return int(angle + 0.6 * turn > 0)\n"
SLOW = "import time\nNUMBER = {}\ndef act(observation):\n    time.sleep({})\n    " + BALANCE
BUSY = (
    "import time\nNUMBER = {}\ndef act(observation):\n    end = time.thread_time() + {}\n"
    "    while time.thread_time() < end:\n        pass\n    " + BALANCE
)
QUICK = "def act(observation):\n    " + BALANCE
FREE = "def act(observation):\n    return [cell for cell in range(9) if observation[cell] == 0][{}]\n"


def send(arena: Arena, code: str, owner: str, env_id: str = ENV, **more: Any) -> str:
    upload = [Upload(name="agent.py", data=code.encode())]
    return arena.submissions.submit(upload, owner=owner, env_id=env_id, algorithm="agent", **more).id


def wait(arena: Arena, submission_id: str, started: float, limit_s: float) -> tuple[float, float, list[float]]:
    """Seconds until it began, until it was over, and the ETAs that it was told meanwhile."""
    began, told = 0.0, list[float]()
    while True:
        found, now = arena.store.submissions.get(submission_id), time.monotonic() - started
        if found.state is not State.QUEUED and not began:
            began = now
        if found.state not in ACTIVE:
            return began, now, told
        eta_s = arena.submissions.place(found).eta_s
        if eta_s is not None and not began:
            told.append(round(eta_s, 1))
        if now > limit_s:
            return began or now, now, told
        time.sleep(0.02)


def crowd(arena: Arena, code: str, number: int, sleep_s: float, *, names: bool) -> None:
    for n in range(number):
        more = {"anonymous": True, "address": "192.0.2.1"} if names else {}
        owner = f"name {n}" if names else "crowd"
        upload = [Upload(name="agent.py", data=code.format(n, sleep_s).encode())]
        arena.submissions.submit(upload, owner=owner, env_id=ENV, algorithm=f"agent {n}", **more)


def measure(folder: Path, code: str, number: int, sleep_s: float, *, names: bool, workers: int) -> dict[str, Any]:
    settings = Settings(
        data=folder,
        database_url=f"sqlite:///{folder}/arena.db",
        secret_key=b"only to measure with",
        quota=DefaultQuota(per_day=None, at_once=None),
        workers=workers,
    )
    with Arena(settings) as arena:
        arena.put_environment(ENV)
        arena.put_environment(LADDER, settings={"games_target": 1_000_000, "provisional_games": 1_000_000})
        for n in range(3):
            made = send(arena, FREE.format((0, -1, 0)[n]) + "#" * n, f"player {n}", LADDER)
            wait(arena, made, time.monotonic(), 60)
        wait(arena, send(arena, QUICK + "#", "somebody"), time.monotonic(), 60)
        crowd(arena, code, number, sleep_s, names=names)
        time.sleep(3)  # they have all slots that they can get
        before = len(arena.store.matches.where(env_id=LADDER, limit=1000))
        started = time.monotonic()
        began, over, told = wait(arena, send(arena, QUICK, "newcomer"), started, 120)
        time.sleep(max(0.0, 10 - over))
        after = len(arena.store.matches.where(env_id=LADDER, limit=1000))
        seconds = time.monotonic() - started
        arena.workers.stop(0)
    return {
        "newcomer starts after s": round(began, 2),
        "is ranked after s": round(over, 2),
        "first and last eta s": [told[0], told[-1]] if told else None,
        "ladder matches a minute": round((after - before) / seconds * 60),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--names", type=int, default=40)
    parser.add_argument("--sleep-ms", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sleep_s = args.sleep_ms / 1000
    found: dict[str, Any] = {}
    for name, code, number, names in (
        (f"{args.agents} sleeping agents of one owner", SLOW, args.agents, False),
        (f"{args.agents} busy agents of one owner", BUSY, args.agents, False),
        (f"{args.names} anonymous names from one address", SLOW, args.names, True),
    ):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(Path(folder), code, number, sleep_s, names=names, workers=args.workers)
        if not args.json:
            print(name, found[name], flush=True)
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
