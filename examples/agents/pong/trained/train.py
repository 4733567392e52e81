"""Trains the network of agent.py: the cross-entropy method, against the ball tracker and a random player.

Each generation draws networks around a mean, plays all of them at once, and moves the mean to the best. Seeded: the
same weights each time. Needs `pip install 'harena[match]'`; takes about a minute on one core.

    python train.py [OUTPUT]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from agent import SIZE, decide, from_the_left

from harena.match import registry

GENERATIONS, POPULATION, BEST = 25, 40, 8
GAMES, TRACKERS = 12, 10
"""For each network and generation, half in either seat; so many against the tracker, the rest against random."""


def main(output):
    rng = np.random.default_rng(0)
    mean, spread = np.zeros(SIZE), np.full(SIZE, 2.0)
    for generation in range(GENERATIONS):
        weights = mean + spread * rng.standard_normal((POPULATION, SIZE))
        points = play(weights, generation, rng).mean(1)
        best = weights[np.argsort(points)[-BEST:]]
        mean = 0.4 * mean + 0.6 * best.mean(0)
        spread = 0.4 * spread + 0.6 * best.std(0)
        print(
            f"generation {generation + 1:2}: best {points.max():+.2f}, all {points.mean():+.2f} points ahead",
            flush=True,
        )
    tracker, random = check(mean, rng)
    print(f"the mean of the last ones: {tracker:+.1f} points against the tracker, {random:+.1f} against random")
    np.savez(output, weights=mean.astype(np.float32))


def play(weights, seed, rng):
    """Points ahead of the opponent, for each network and each of its games. All see the same serves."""
    games = [registry.make("pong") for _ in range(len(weights) * GAMES)]
    seats = np.arange(GAMES) % 2
    for number, game in enumerate(games):
        game.reset(1000 * seed + number % GAMES // 2)
    running = set(range(len(games)))
    while running:
        seen = np.frombuffer(b"".join(game.observe(0) for game in games), "<f4").reshape(-1, GAMES, 8).astype(float)
        mine = np.where(seats == 0, decide(weights, seen), decide(weights, from_the_left(seen, 1)))
        theirs = opponents(seen, seats, rng)
        left = np.where(seats == 0, mine, theirs).ravel().tolist()
        right = np.where(seats == 0, theirs, mine).ravel().tolist()
        for number in list(running):
            games[number].step({0: left[number], 1: right[number]})
            if not games[number].to_move():
                running.remove(number)
    scores = np.array([game.outcome().scores for game in games]).reshape(-1, GAMES, 2)
    return (scores[..., 0] - scores[..., 1]) * np.where(seats == 0, 1, -1)


def opponents(seen, seats, rng):
    paddles = np.where(seats == 0, seen[..., 5], seen[..., 4])
    gap = seen[..., 1] - paddles
    tracker = np.where(np.abs(gap) < 0.02, 1, np.where(gap > 0, 2, 0))
    return np.where(np.arange(GAMES) < TRACKERS, tracker, rng.integers(0, 3, gap.shape))


def check(weights, rng):
    """Points ahead on serves it was not trained on: against the tracker, against random."""
    points = np.concatenate([play(weights[None], 10_000 + seed, rng) for seed in range(10)])
    return points[:, :TRACKERS].mean(), points[:, TRACKERS:].mean()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("weights.npz"))
