"""Benchmark of matches on this machine: `harena bench match`. It uses real boxes, clocks for every move, and recorded
replays. benchmarks/peers/kaggle.py compares the results with kaggle-environments and PettingZoo."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from harena.match import registry
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, Clock, MatchSpec
from harena.match.run import lockstep
from harena.match.run.play import Rack, on_one_processor, play
from harena.match.run.runner import Runner
from harena.sandbox.bench import Row, table

CONNECT_FOUR = """
import random

class Agent:
    def __init__(self, seed):
        self.dice = random.Random(seed)

    def act(self, observation):
        while True:
            column = self.dice.randrange(7)
            if observation[column] == 0:
                return column
"""
PONG = """
def act(observation):
    return 0 if observation[1] < observation[4] else 2
"""
THINKER = """
import time

def act(observation):
    end = time.process_time() + 0.020
    while time.process_time() < end:
        pass
    return next(column for column in range(7) if observation[column] == 0)
"""
PONDERER = """
import threading

def spin():
    while True:
        pass

threading.Thread(target=spin, daemon=True).start()

def act(observation):
    return next(column for column in range(7) if observation[column] == 0)
"""


def spec_of(environment: str, *sources: str, **options: Any) -> MatchSpec:
    players = tuple(
        AgentCode(name=f"agent{number}", files={"agent.py": source.encode()}) for number, source in enumerate(sources)
    )
    return MatchSpec(environment=environment, agents=players, clock=Clock(move_s=5), **options)


def steps_per_second(spec: MatchSpec, games: int, rack: Rack) -> float:
    """Steps per second of a series that keeps its agents, including games and replays, on one processor as in a
    worker."""
    with on_one_processor():
        play(spec, rack=rack)
        started = time.perf_counter()
        steps = sum(play(dataclasses.replace(spec, seed=seed), rack=rack).steps for seed in range(games))
        return steps / (time.perf_counter() - started)


def series(quick: bool) -> list[Row]:
    games = 60 if quick else 400
    four = spec_of("connect_four", CONNECT_FOUR, CONNECT_FOUR, keep=True)
    pong = spec_of("pong", PONG, PONG, keep=True)
    with Rack() as rack:
        rows = [
            Row(
                "connect four, two isolated agents, one processor",
                steps_per_second(four, games, rack),
                "moves/s",
                12_600,
                60_000,
                more_is_better=True,
            ),
            Row(
                "pong, two isolated agents, one processor",
                steps_per_second(pong, games // 20, rack),
                "steps/s",
                12_000,
                25_000,
                more_is_better=True,
            ),
        ]
    with Runner() as runner:
        specs = [dataclasses.replace(four, seed=seed) for seed in range(games * 2)]
        runner.run(specs[:8])
        started = time.perf_counter()
        steps = sum(result.steps for result in runner.run(specs))
        rate = steps / (time.perf_counter() - started)
    rows.append(Row(f"… connect four on all {runner.workers} processors", rate, "moves/s", 12_600, 60_000, True))
    return rows


def in_process(environment: str, source: str, games: int) -> float:
    """The same agents in our own process, without isolation and clocks. They get the same arrays."""
    names: dict[str, Any] = {}
    exec(compile(source, "<agent>", "exec"), names)  # our own source, above
    game = registry.make(environment)
    spaces = [game.observation_space(seat) for seat in range(game.seats)]
    steps, started = 0, time.perf_counter()
    for seed in range(games):
        game.reset(seed)
        agents = [names["Agent"](seat).act if "Agent" in names else names["act"] for seat in range(game.seats)]
        while movers := game.to_move():
            steps += 1
            game.step(
                {
                    seat: agents[seat](spaces[seat].decode_all(spaces[seat].encode(game.observe(seat))))
                    for seat in movers
                }
            )
    return steps / (time.perf_counter() - started)


def together(quick: bool) -> list[Row]:
    rows: list[Row] = []
    with Rack() as rack:
        for environment, source, games in (("connect_four", CONNECT_FOUR, 1024), ("pong", PONG, 64)):
            spec = spec_of(environment, source, source, record=False)
            ratios: list[float] = []
            lockstep.evaluate(spec, range(8), rack=rack)
            for _ in range(2 if quick else 5):
                alone = in_process(environment, source, games // 4)
                started = time.perf_counter()
                results = lockstep.evaluate(spec, range(games), rack=rack)
                ratios.append(sum(result.steps for result in results) / (time.perf_counter() - started) / alone * 100)
            name = f"lockstep of {games} games of {environment}, isolated, against in-process"
            rows.append(Row(name, statistics.median(ratios), "%", 60, 85, more_is_better=True))
    return rows


def first_move(spec: MatchSpec, rack: Rack) -> float:
    """Time until the first move of a match."""
    moves: list[float] = []
    play(spec, rack=rack, on_event=lambda event: moves.append(time.perf_counter()) if event.get("step") else None)
    return moves[0]


def start(quick: bool) -> list[Row]:
    taken: list[float] = []
    spec = spec_of("connect_four", CONNECT_FOUR, CONNECT_FOUR)
    with Rack() as rack:
        rack.warm_up(2)
        for _ in range(10 if quick else 60):
            started = time.perf_counter()
            taken.append(first_move(spec, rack) - started)
            time.sleep(0.01)
    return [Row("match start to first move, warm", statistics.median(taken) * 1e3, "ms", 15, 5)]


def replay_size(quick: bool) -> list[Row]:
    """Size of the replay of a full game of 1000 steps between agents that make every second move at random."""
    move = "random.randrange(3) if random.random() < 0.5 else 0 if o[1] < o[4] else 2"
    dice = f"import random\ndef act(o): return {move}\n"
    other = dice.replace("o[4]", "o[5]")
    with Rack() as rack:
        for seed in range(100):
            result = play(dataclasses.replace(spec_of("pong", dice, other), seed=seed), rack=rack)
            if result.steps == 1000:
                break
        else:
            raise RuntimeError("no game lasted for 1000 steps")
    if not Replay.load(result.replay).verify().ok:
        raise RuntimeError("a replay did not verify")
    return [Row("compact replay of 1000 pong steps", len(result.replay), "bytes", 6000, 1000)]


def clock_error(quick: bool) -> list[Row]:
    """Time charged for 20 ms of thinking against an opponent that never stops computing."""
    spec = spec_of("connect_four", THINKER, PONDERER)
    charged: list[float] = []
    with Rack() as rack:
        for seed in range(2 if quick else 6):
            seat = play(dataclasses.replace(spec, seed=seed), rack=rack).seats[0]
            charged.append(seat.cpu_s / seat.moves * 1e3)
    return [Row("20 ms of thinking beside a busy opponent are charged", statistics.median(charged), "ms", 24, 21)]


PARTS = {
    "series": series,
    "lockstep": together,
    "start": start,
    "replay": replay_size,
    "clock": clock_error,
}


def measure(quick: bool = False, parts: tuple[str, ...] = ()) -> list[Row]:
    rows: list[Row] = []
    for name, part in PARTS.items():
        if not parts or name in parts:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            rows += part(quick)
    return rows


def main(*, quick: bool = False, json_file: str | None = None, parts: tuple[str, ...] = ()) -> int:
    rows = measure(quick, parts)
    print(table(rows))
    if json_file:
        Path(json_file).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    return 0
