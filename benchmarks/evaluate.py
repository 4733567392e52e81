"""Measures from an upload to its verified score: CartPole, 20 episodes that all last 500 steps, on a warm rack and on a
runner, and each way of playing them by itself. Run it alone on the machine: `python benchmarks/evaluate.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from harena.arena.submissions import evaluate, intake, script
from harena.match.result import AgentCode, MatchSpec
from harena.match.run import lockstep
from harena.match.run.play import Rack, play
from harena.match.run.runner import Runner
from harena.sandbox import bench
from harena.sandbox.pool import SandboxPool

AGENT = Path(__file__).parent.parent / "examples" / "agents" / "cartpole" / "balance.py"
DICE = b"import random\ndef act(observation): return random.randrange(2)\n"
SCRIPT = b'import json\nprint(json.dumps({"score": 1.0}))\n'
ENVIRONMENT = "CartPole-v1"
TIMES = 9


def to_score(data: bytes, table: Rack | Runner, secret: bytes) -> evaluate.EvaluationRun:
    taken = intake.take_in([intake.Upload(name="agent.py", data=data)])
    assert isinstance(taken.code, AgentCode)
    return evaluate.evaluate(taken.code, ENVIRONMENT, secret=secret, table=table)


def script_to_score(pool: SandboxPool) -> script.ScriptRun:
    taken = intake.take_in([intake.Upload(name="submission.py", data=SCRIPT)])
    assert isinstance(taken.code, script.ScriptCode)
    return script.run(taken.code, ENVIRONMENT, lease=pool.lease)


def measure() -> list[bench.Row]:
    data, secret = AGENT.read_bytes(), evaluate.new_secret()
    code = AgentCode(name="balance", files={"agent.py": data})
    spec = MatchSpec(environment=ENVIRONMENT, agents=(code,))
    seeds = evaluate.seeds(secret, ENVIRONMENT)

    def row(name: str, action: Callable[[], object], must: float | None = None, aim: float | None = None) -> bench.Row:
        action()
        return bench.Row(name, bench.median(action, TIMES, pause_s=0.1) * 1000, "ms", must, aim)

    upload = [intake.Upload(name="agent.py", data=data)]
    rows = [row("intake: one file, read and checked", lambda: intake.take_in(upload))]
    with Rack() as rack:
        rack.warm_up(1)
        alone = [dataclasses.replace(spec, seed=seed) for seed in seeds]
        rows += [
            row("20 episodes in lockstep", lambda: lockstep.evaluate(spec, seeds, rack=rack)),
            row("20 episodes one by one", lambda: [play(one, rack=rack) for one in alone]),
            row("upload to score, warm rack", lambda: to_score(data, rack, secret), 1500, 500),
            row("upload to score, an agent that throws dice", lambda: to_score(DICE, rack, secret), 1500, 500),
        ]
    with Runner() as runner:
        rows.append(row("upload to score, runner", lambda: to_score(data, runner, secret), 1500, 500))
    with SandboxPool(script.box_spec(), warm=2) as pool:
        rows.append(row("upload to score, a script that only prints", lambda: script_to_score(pool)))
    return rows


if __name__ == "__main__":
    print(bench.table(measure()))
