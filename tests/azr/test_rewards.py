from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.azr.check.rewards import Learnability, learnability, propose_reward, solve_reward

shares = st.floats(0, 1)


def test_a_solve_earns_as_the_paper_says() -> None:
    assert solve_reward(well_formed=True, right=True) == 1
    assert solve_reward(well_formed=True, right=False) == -0.5
    assert solve_reward(well_formed=False, right=False) == solve_reward(well_formed=False, right=True) == -1


@pytest.mark.parametrize(
    ("form", "never", "always", "sometimes", "invalid"),
    [("paper", 0, 0, 0.75, -0.5), ("authors", -0.5, -0.5, 0.75, -1), ("quadratic", 0, 0, 0.75, -0.5)],
)
def test_a_proposal_earns_by_its_form(form: str, never: float, always: float, sometimes: float, invalid: float) -> None:
    kind = Learnability(form)
    assert propose_reward(well_formed=True, share=0.0, form=kind) == never
    assert propose_reward(well_formed=True, share=1.0, form=kind) == always
    assert propose_reward(well_formed=True, share=0.25, form=kind) == sometimes
    assert propose_reward(well_formed=True, share=None, form=kind) == invalid
    assert propose_reward(well_formed=False, share=None, form=kind) == -1


@given(shares, st.sampled_from(Learnability))
def test_no_task_is_worth_more_than_a_right_answer_or_less_than_a_wrong_one(share: float, form: Learnability) -> None:
    assert -0.5 <= learnability(share, form) <= 1


@given(st.integers(1, 7), st.integers(1, 7))
def test_a_harder_task_that_is_solved_sometimes_is_worth_more(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert learnability(low / 8) >= learnability(high / 8)


@given(shares)
def test_the_quadratic_form_does_not_care_which_side_is_rare(share: float) -> None:
    assert learnability(share, Learnability.QUADRATIC) == pytest.approx(learnability(1 - share, Learnability.QUADRATIC))


@given(shares, st.sampled_from(Learnability))
def test_a_guard_decides_about_repeats_and_nothing_else(share: float, form: Learnability) -> None:
    assert propose_reward(well_formed=True, share=share, form=form, seen_before=True, guard=-0.5) == -0.5
    assert propose_reward(well_formed=True, share=share, form=form, seen_before=True) == learnability(share, form)
    assert propose_reward(well_formed=True, share=share, form=form, guard=-0.5) == learnability(share, form)
    assert propose_reward(well_formed=False, share=share, form=form, seen_before=True, guard=-0.5) == -1


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_nought_to_one(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        learnability(share)
