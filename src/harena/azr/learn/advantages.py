"""Advantages from rewards. Pure functions on arrays: no state, no randomness, no model.

trr            TRR++: (r - mean) / std within each group; the groups are the six pairs of role and kind. By sequence,
               each sample counts once (the paper); by token, as often as it has tokens (the authors' code).
single         the same with one group: what TRR++ is compared with.
rae            role-conditioned baselines that follow the rewards slowly (SPIRAL): r - baseline, no division.
hierarchical   a solve is compared with the other solves of the same task, a proposal with those of its group.
gae            for PPO with a value head: one advantage and one return for each token.

A group whose rewards are all the same says nothing: its advantages are 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EPSILON = 1e-4
"""Added to a standard deviation, as TRL does, so that engines agree to the last bit of what matters."""


def trr(rewards: Sequence[float], groups: Sequence[Hashable], *, lengths: Sequence[int] | None = None) -> Array:
    """lengths: tokens of each sample, for the token-level baseline; None is the sequence level."""
    values = _values(rewards, groups)
    weights = np.ones(len(values)) if lengths is None else np.asarray(lengths, dtype=np.float64)
    if len(weights) != len(values) or (weights < 0).any():
        raise ValueError("lengths: one for each reward, none negative")
    result = np.zeros(len(values))
    for members in _members(groups).values():
        result[members] = _whitened(values[members], weights[members])
    return result


def single(rewards: Sequence[float], *, lengths: Sequence[int] | None = None) -> Array:
    return trr(rewards, [0] * len(rewards), lengths=lengths)


def rae(
    rewards: Sequence[float],
    groups: Sequence[str],
    baselines: Mapping[str, float],
    *,
    decay: float = 0.95,
) -> tuple[Array, dict[str, float]]:
    """The advantages, and the baselines for the next batch. A group that was never seen starts with its own mean."""
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"decay={decay!r}: from 0, below 1")
    values = _values(rewards, groups)
    result = np.zeros(len(values))
    moved = dict(baselines)
    for group, members in _members(groups).items():
        mean = float(values[members].mean())
        moved[group] = decay * moved[group] + (1.0 - decay) * mean if group in moved else mean
        result[members] = values[members] - moved[group]
    return result, moved


def hierarchical(rewards: Sequence[float], groups: Sequence[Hashable], tasks: Sequence[Hashable | None]) -> Array:
    """tasks: what a solve was an attempt at; None for proposals. An attempt that has no other at its task is compared
    with its group. The scale is the group's, so that easy and hard tasks weigh as they should."""
    values = _values(rewards, groups)
    if len(tasks) != len(values):
        raise ValueError("tasks: one for each reward")
    result = np.zeros(len(values))
    for members in _members(groups).values():
        inner = _members([tasks[index] for index in members])
        centred = values[members] - values[members].mean()
        for task, places in inner.items():
            if task is not None and len(places) > 1:
                centred[places] = values[members][places] - values[members][places].mean()
        result[members] = centred / (_deviation(values[members], np.ones(len(members))) + EPSILON)
    return result


def gae(
    rewards: Sequence[float], values: Sequence[Sequence[float]], *, discount: float = 1.0, trace: float = 1.0
) -> tuple[list[Array], list[Array]]:
    """Generalised advantage estimates. The reward comes with the last token; values are the value head's, one for each
    token. Returns advantages and returns by sample; a sample without tokens has none."""
    if len(rewards) != len(values):
        raise ValueError("values: one row for each reward")
    advantages: list[Array] = []
    returns: list[Array] = []
    for reward, row in zip(rewards, values, strict=True):
        expected = np.asarray(row, dtype=np.float64)
        result = np.zeros(len(expected))
        running = 0.0
        for at in range(len(expected) - 1, -1, -1):
            last = at == len(expected) - 1
            error = (reward if last else discount * expected[at + 1]) - expected[at]
            running = error + discount * trace * (0.0 if last else running)
            result[at] = running
        advantages.append(result)
        returns.append(result + expected)
    return advantages, returns


def whiten(advantages: Sequence[Array]) -> list[Array]:
    """Mean 0 and deviation 1 over all tokens of all samples."""
    flat = np.concatenate([*advantages, np.zeros(0)])
    if len(flat) < 2:
        return [np.zeros(len(row)) for row in advantages]
    scale = _deviation(flat, np.ones(len(flat))) + EPSILON
    return [(row - flat.mean()) / scale for row in advantages]


def _values(rewards: Sequence[float], groups: Sequence[Hashable]) -> Array:
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) != len(groups):
        raise ValueError(f"{len(values)} rewards and {len(groups)} groups")
    if not np.isfinite(values).all():
        raise ValueError("a reward is not finite")
    return values


G = TypeVar("G", bound=Hashable)


def _members(groups: Sequence[G]) -> dict[G, list[int]]:
    members: dict[G, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


def _whitened(values: Array, weights: Array) -> Array:
    total = weights.sum()
    if total == 0:
        return np.zeros(len(values))
    centred = values - float((weights * values).sum() / total)
    return centred / (_deviation(values, weights) + EPSILON)


def _deviation(values: Array, weights: Array) -> float:
    """The sample's standard deviation: of so many values as the weights count; 0 of a single one."""
    total = float(weights.sum())
    if total <= 1:
        return 0.0
    mean = float((weights * values).sum() / total)
    return float(np.sqrt((weights * (values - mean) ** 2).sum() / (total - 1)))
