"""Measures the ladder: `python benchmarks/ladder.py [--quick]` prints a table.

    refit            the board from a log of 50,000 matches among 200 agents, ms, median; reading the log included
    Kendall's tau    of the board against the true strengths of 40 simulated agents, after 40 games each
    coverage         how often a 95 % interval of the board holds the true strength

The simulated ladder is the real one: `pairing.choose` picks each match with four in play, `ratings.Ladder` moves on
with each result, `ratings.refit` makes the board. Only the games are drawn: by Plackett-Luce, from strengths that are
normally distributed with a standard deviation of SPREAD.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Matrices of this size are quicker on one thread, above all beside others who use the processors.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harena.arena.ladder import pairing, ratings
from harena.sandbox import bench

AGENTS = 40
GAMES_EACH = 40
SPREAD = 200 / ratings.SCALE
"""Log odds; 200 points are one class of players in chess, for which Elo chose that number."""
IN_PLAY = 4
"""Matches at the same time, whose results come later than the next pairings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    tau: float
    coverage: float
    fewest: int
    """Games of the agent with the fewest."""


def simulate(seed: int, *, seats: int = 2, games_each: int = GAMES_EACH, draws: float = 0.0) -> Run:
    rng = random.Random(seed)
    truth = {f"agent{number:02}": rng.gauss(0, SPREAD) for number in range(AGENTS)}
    rules = pairing.PairingRules(seats=seats)
    ladder = ratings.RatingLadder()
    recent: list[tuple[str, ...]] = []
    running: deque[ratings.RatedOutcome] = deque()
    since = dict.fromkeys(truth, 0.0)
    for number in range(AGENTS * games_each // seats):
        field = [
            pairing.Candidate(agent=agent, rating=ladder.rating(agent), waiting_since=since[agent]) for agent in truth
        ]
        in_play = [outcome.agents for outcome in running]
        match = pairing.choose(field, recent[-rules.patience(AGENTS) :], in_play, rng=rng, now=number, rules=rules)
        if match is None:
            raise RuntimeError("nobody could be paired")
        recent.append(match.agents)
        since.update(dict.fromkeys(match.agents, float(number)))
        running.append(
            ratings.RatedOutcome(number=number, agents=match.agents, ranks=play(match.agents, truth, draws, rng))
        )
        if len(running) == IN_PLAY:
            ladder.apply(running.popleft())
    for outcome in running:
        ladder.apply(outcome)
    return judge(ratings.refit(ladder.log), truth)


def play(agents: Sequence[str], truth: dict[str, float], draws: float, rng: random.Random) -> tuple[int, ...]:
    """`draws`: the share of games between equals that are drawn, at tables of two; fewer between others, so that the
    share of points stays the same."""
    chance = 1 / (1 + math.exp(abs(truth[agents[0]] - truth[agents[1]])))
    if rng.random() < 2 * draws * chance:
        return (1,) * len(agents)
    if draws:
        upset = rng.random() < chance * (1 - draws) / (1 - 2 * draws * chance)
        return (1, 2) if upset == (truth[agents[0]] < truth[agents[1]]) else (2, 1)
    return ratings.ranks_of([truth[agent] - math.log(rng.expovariate(1)) for agent in agents])


def judge(board: ratings.RatingBoard, truth: dict[str, float]) -> Run:
    mean = statistics.fmean(truth.values())
    true = {agent: ratings.MEAN + ratings.SCALE * (strength - mean) for agent, strength in truth.items()}
    agreed = 0
    for place, entry in enumerate(board.entries):
        for below in board.entries[place + 1 :]:
            agreed += 1 if true[entry.agent] > true[below.agent] else -1
    return Run(
        tau=agreed / math.comb(len(truth), 2),
        coverage=statistics.fmean(entry.low <= true[entry.agent] <= entry.high for entry in board.entries),
        fewest=min(entry.games for entry in board.entries),
    )


def big_log(agents: int, matches: int) -> list[ratings.RatedOutcome]:
    rng = random.Random(0)
    truth = {f"agent{number:03}": rng.gauss(0, SPREAD) for number in range(agents)}
    names = list(truth)
    log: list[ratings.RatedOutcome] = []
    for number in range(matches):
        pair = tuple(rng.sample(names, 2))
        log.append(ratings.RatedOutcome(number=number, agents=pair, ranks=play(pair, truth, 0.1, rng)))
    return log


def median_ms(action: Callable[[], object], times: int) -> float:
    return bench.median(action, times) * 1000


def verdict(value: float, must: tuple[float, float], aim: tuple[float, float]) -> str:
    return next((name for name, (low, high) in (("aim", aim), ("must", must)) if low <= value <= high), "missed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    quick: bool = parser.parse_args().quick
    log = big_log(200, 50_000)
    refit = median_ms(lambda: ratings.refit(log), 5 if quick else 21)
    fold = median_ms(lambda: ratings.fold(log), 1 if quick else 3)
    runs = [simulate(seed) for seed in range(10 if quick else 100)]
    tau, coverage = (
        statistics.fmean(values) for values in zip(*((run.tau, run.coverage) for run in runs), strict=True)
    )
    print("| what | measured | must | aim | reached |\n|---|---|---|---|---|")
    reached = verdict(refit, (0, 200), (0, 40))
    print(f"| refit of 200 agents, 50,000 matches | {refit:.1f} ms | ≤ 200 | ≤ 40 | {reached} |")
    name = f"ladder of {AGENTS} simulated agents, {GAMES_EACH} games each, {len(runs)} runs"
    print(f"| {name}: Kendall τ | {tau:.3f} | ≥ 0.78 | ≥ 0.82 | {verdict(tau, (0.78, 1), (0.82, 1))} |")
    reached = verdict(coverage, (0.90, 0.98), (0.93, 0.97))
    print(f"| {name}: interval coverage | {coverage:.1%} | 90–98 % | 93–97 % | {reached} |")
    others = {"half of the games between equals drawn": {"draws": 0.5}, "tables of four": {"seats": 4}}
    for what, options in others.items():
        more = [simulate(seed, **options) for seed in range(5 if quick else 40)]
        tau, coverage = statistics.fmean(run.tau for run in more), statistics.fmean(run.coverage for run in more)
        print(f"| {what}: τ · coverage | {tau:.3f} · {coverage:.1%} | | | |")
    print(f"| ratings rebuilt from 50,000 matches | {fold:,.0f} ms | | | |")
    print(f"| fewest games of any agent | {min(run.fewest for run in runs)} | | | |")


if __name__ == "__main__":
    main()
