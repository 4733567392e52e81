"""The reward function for TRL: right programs score, hostile ones do not, and the platform's failures are masked."""

from __future__ import annotations

import asyncio
import time

import pytest

from harena import BoxLost, SpecError
from harena.adapters.trl import CodeReward, code_of
from harena.azr.check.executor import Bounds, ProgramExecutor

CASES = [{"args": [1, 2], "result": 3}, {"args": [5, 8], "result": 13}]
RIGHT = "Let me think.\n```python\ndef solve(a, b):\n    return a + b\n```\nDone."
WRONG = "```python\ndef solve(a, b):\n    return 3\n```"


@pytest.fixture(scope="module")
def reward():
    with CodeReward(function="solve", bounds=Bounds(wall_s=2)) as reward:
        yield reward


def graded(reward, *completions, cases=CASES):
    return reward(prompts=[""] * len(completions), completions=list(completions), cases=[cases] * len(completions))


def test_right_programs_score_and_wrong_ones_do_not(reward):
    assert graded(reward, RIGHT, WRONG, "no code", "") == [1.0, 0.0, 0.0, 0.0]


def test_conversational_completions_are_read(reward):
    assert graded(reward, [{"role": "assistant", "content": RIGHT}]) == [1.0]


def test_partial_scores_are_shares():
    with CodeReward(function="solve", partial=True) as reward:
        assert graded(reward, WRONG, RIGHT) == [0.5, 1.0]


@pytest.mark.parametrize(
    "attack",
    [
        "import os\nos._exit(0)",
        "def solve(a, b):\n    while True: pass",
        "import sys, gc\ndef solve(a, b):\n    return [o for o in gc.get_objects() if o == 13][0]",
        "class Same(int):\n    def __eq__(self, other): return True\ndef solve(a, b): return Same(0)",
        "import builtins\nbuiltins.all = lambda x: True\ndef solve(a, b): return 0",
        "def solve(a, b):\n    x = 'a' * 10**11\n    return a + b",
        "def solve(a, b): return __import__('os').system('kill -9 -1')",
    ],
)
def test_an_attack_scores_nothing_and_leaves_others_alone(reward, attack):
    assert graded(reward, RIGHT, attack, RIGHT) == [1.0, 0.0, 1.0]


def test_a_failure_of_the_platform_is_masked_and_not_a_score(reward, monkeypatch):
    def lost(self, jobs):
        raise BoxLost("the box died")

    monkeypatch.setattr(ProgramExecutor, "run", lost)
    assert graded(reward, RIGHT, WRONG) == [None, None]
    monkeypatch.undo()
    assert graded(reward, RIGHT, WRONG) == [1.0, 0.0]


def test_a_call_ends_at_its_deadline(monkeypatch):
    def slow(self, jobs):
        time.sleep(5)
        return []

    monkeypatch.setattr(ProgramExecutor, "run", slow)
    with CodeReward(function="solve", deadline_s=0.3) as reward:
        began = time.monotonic()
        assert graded(reward, RIGHT) == [None]
        assert time.monotonic() - began < 4


def test_it_runs_beside_other_coroutines(reward):
    function = reward.in_background
    assert asyncio.iscoroutinefunction(function)
    assert asyncio.run(function(completions=[RIGHT], cases=[CASES])) == [1.0]


def test_a_data_set_without_cases_is_refused_by_name(reward):
    with pytest.raises(SpecError, match="'cases'"):
        reward(completions=[RIGHT])
    with pytest.raises(SpecError, match="args"):
        graded(reward, RIGHT, cases=[[1, 2, 3]])


def test_the_last_fenced_block_is_the_program():
    assert code_of("```python\na\n```\ntext\n```\nb\n```") == "b\n"
    assert code_of("a = 1") == "a = 1"


@pytest.mark.thorough
def test_trl_takes_it_as_a_reward(reward):
    trl_utils = pytest.importorskip(
        "trl.trainer.grpo_trainer", reason="TRL is not installed: pip install 'harena[trl]'"
    )
    assert trl_utils.is_async_callable(reward.in_background)
    assert not trl_utils.is_async_callable(reward)
    assert reward.__name__ == "code_reward"
