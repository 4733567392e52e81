from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harena.azr.learn.advantages import EPSILON, gae, hierarchical, rae, single, trr, whiten

SIX = [f"{role}/{kind}" for role in ("propose", "solve") for kind in ("deduction", "abduction", "induction")]
batches = st.lists(st.tuples(st.floats(-1, 1), st.sampled_from(SIX), st.integers(1, 50)), min_size=1, max_size=60)
quick = settings(max_examples=100, deadline=None, derandomize=True)


@given(batches)
@quick
def test_every_group_has_mean_nought_and_at_most_unit_deviation(batch: list[tuple[float, str, int]]) -> None:
    rewards, groups, _ = zip(*batch, strict=True)
    found = trr(rewards, groups)
    for group in set(groups):
        mine = found[[name == group for name in groups]]
        assert abs(mine.mean()) < 1e-9
        assert len(mine) < 2 or mine.std(ddof=1) <= 1 + 1e-9


@given(batches, st.floats(0.1, 10), st.floats(-5, 5))
@quick
def test_a_groups_scale_and_offset_do_not_reach_the_others(
    batch: list[tuple[float, str, int]], scale: float, offset: float
) -> None:
    rewards, groups, _ = zip(*batch, strict=True)
    moved = [
        reward * scale + offset if group == SIX[0] else reward for reward, group in zip(rewards, groups, strict=True)
    ]
    others = [group != SIX[0] for group in groups]
    np.testing.assert_array_equal(trr(rewards, groups)[others], trr(moved, groups)[others])


@given(batches)
@quick
def test_token_level_weighs_by_length(batch: list[tuple[float, str, int]]) -> None:
    rewards, groups, lengths = zip(*batch, strict=True)
    found = trr(rewards, groups, lengths=lengths)
    spelled = trr(
        [reward for reward, _, length in batch for _ in range(length)],
        [group for _, group, length in batch for _ in range(length)],
    )
    at = np.cumsum([0, *lengths[:-1]])
    np.testing.assert_allclose(found, spelled[at], atol=1e-6)


def test_sequence_level_is_what_the_papers_equation_says() -> None:
    rewards = [1.0, -0.5, -0.5, 1.0, -1.0, 0.0]
    groups = ["a"] * 4 + ["b"] * 2
    first = np.array(rewards[:4])
    expected = (first - first.mean()) / (first.std(ddof=1) + EPSILON)
    np.testing.assert_allclose(trr(rewards, groups)[:4], expected)


def test_equal_rewards_and_lone_samples_teach_nothing() -> None:
    assert not trr([1.0] * 5 + [0.3], ["a"] * 5 + ["b"]).any()
    assert not trr([0.5], ["a"], lengths=[0]).any()


def test_one_baseline_mixes_what_six_keep_apart() -> None:
    rewards, groups = [1.0, 0.9, -0.9, -1.0], ["easy", "easy", "hard", "hard"]
    assert single(rewards)[1] > 0 > trr(rewards, groups)[1]
    assert single(rewards)[2] < 0 < trr(rewards, groups)[2]


def test_rae_follows_slowly_and_keeps_roles_apart() -> None:
    first, baselines = rae([1.0, 0.0, -1.0], ["a", "a", "b"], {})
    np.testing.assert_allclose(first, [0.5, -0.5, 0.0])
    assert baselines == {"a": 0.5, "b": -1.0}
    second, moved = rae([1.0], ["a"], baselines, decay=0.9)
    assert moved == {"a": pytest.approx(0.55), "b": -1.0}
    np.testing.assert_allclose(second, [0.45])
    assert baselines == {"a": 0.5, "b": -1.0}, "what was given is not changed"


def test_hierarchical_compares_solves_of_one_task_with_each_other() -> None:
    rewards = [1.0, -0.5, 1.0, 1.0, 0.3, 0.7]
    groups = ["solve"] * 4 + ["propose"] * 2
    found = hierarchical(rewards, groups, [0, 0, 1, 1, None, None])
    assert found[0] > 0 > found[1]
    assert found[2] == found[3] == 0, "all right: nothing to learn from that task"
    assert found[4] < 0 < found[5]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(-1, 1))
@quick
def test_gae_without_discount_is_the_reward_less_what_was_expected(values: list[float], reward: float) -> None:
    [found], [returns] = gae([reward], [values])
    np.testing.assert_allclose(found, reward - np.array(values), atol=1e-9)
    np.testing.assert_allclose(returns, reward, atol=1e-9)


def test_gae_by_hand() -> None:
    [found], [returns] = gae([1.0], [[0.5, 0.25]], discount=0.9, trace=0.8)
    last = 1.0 - 0.25
    first = 0.9 * 0.25 - 0.5 + 0.9 * 0.8 * last
    np.testing.assert_allclose(found, [first, last])
    np.testing.assert_allclose(returns, [first + 0.5, 1.0])
    assert [len(row) for row in gae([1.0], [[]])[0]] == [0]


def test_whitening_is_over_all_tokens() -> None:
    rows = whiten([np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])])
    flat = np.concatenate(rows)
    assert abs(flat.mean()) < 1e-12
    assert flat.std(ddof=1) == pytest.approx(1, abs=1e-3)


def test_what_does_not_fit_is_refused() -> None:
    for call in (
        lambda: trr([1.0], ["a", "b"]),
        lambda: trr([float("nan")], ["a"]),
        lambda: trr([1.0], ["a"], lengths=[-1]),
        lambda: hierarchical([1.0], ["a"], []),
        lambda: gae([1.0], []),
        lambda: rae([1.0], ["a"], {}, decay=1.0),
    ):
        with pytest.raises(ValueError):
            call()
