"""The held-out suite: always the same tasks, graded, and none of its programs is ever drawn for training."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from harena.azr.tasks import programs, suite
from harena.azr.tasks.kinds import InductionTask, TaskKind, program_digest
from harena.errors import SpecError


def test_the_suite_is_the_same_every_time() -> None:
    assert suite.tiny(per_cell=5) == suite.tiny(per_cell=5)
    assert suite.tiny(per_cell=5) != suite.tiny(per_cell=5, seed=1)


def test_a_larger_suite_begins_with_the_smaller_one() -> None:
    small = {item.id: item for item in suite.tiny(per_cell=3)}
    large = {item.id: item for item in suite.tiny(per_cell=9)}
    assert all(large[name] == item for name, item in small.items())


def test_every_kind_has_as_many_tasks_of_every_grade() -> None:
    counted = Counter((item.kind, item.groups) for item in suite.tiny(per_cell=4))
    assert len(counted) == len(TaskKind) * len(suite.GRADES)
    assert set(counted.values()) == {4}


def test_no_task_is_there_twice() -> None:
    items = suite.tiny(per_cell=40)
    assert len({(item.kind, item.task) for item in items}) == len({item.id for item in items}) == len(items)


def test_induction_tasks_show_half_of_their_pairs() -> None:
    for item in suite.tiny(per_cell=2):
        if isinstance(item.task, InductionTask):
            assert len(item.task.shown) == len(item.task.hidden) == 3


def test_training_never_draws_a_program_of_the_suite() -> None:
    held_out = suite.digests(suite.tiny(per_cell=150))
    rng = Random(3)
    trained = {program_digest(programs.draw(rng, ops=1 + n % programs.MAX_OPS).program) for n in range(4000)}
    assert len(held_out) > 1000
    assert len(trained) > 2000
    assert not held_out & trained


def test_the_split_does_not_depend_on_names_layout_or_types() -> None:
    """Programs with one syntax tree are on one side, though drawn for other types or cut into other operations."""
    sides: dict[str, set[bool]] = {}
    rng = Random(4)
    for number in range(3000):
        drawn = programs.draw(rng, ops=1 + number % 2, held_out=number % 3 == 0)
        sides.setdefault(program_digest(drawn.program), set()).add(programs.is_held_out(drawn.key))
    assert all(len(side) == 1 for side in sides.values())


def test_thinning_keeps_the_mix_and_its_choice() -> None:
    items = suite.tiny(per_cell=10)
    thin = suite.thinned(items, 24)
    assert thin == suite.thinned(items, 24)
    assert set(Counter(item.groups for item in thin).values()) == {2}
    assert suite.thinned(items, None) == suite.thinned(items, 10_000) == items


@pytest.mark.parametrize("count", [3, 6, 10, 100])
def test_a_thinned_set_keeps_the_share_of_each_part_whatever_their_order(count: int) -> None:
    turns = [(number % 2, number) for number in range(200)]
    thin = suite.thinned(turns, count, by=lambda one: one[0])
    assert len(thin) == count
    assert thin == sorted(thin, key=lambda one: one[1])
    assert abs(sum(one[0] for one in thin) - count / 2) <= 0.5


def test_an_empty_suite_is_refused() -> None:
    with pytest.raises(SpecError, match="per_cell=0"):
        suite.tiny(per_cell=0)
