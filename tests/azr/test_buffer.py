from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harena.azr.tasks import buffer
from harena.azr.tasks import kinds as tasks
from harena.azr.tasks.buffer import BadBuffer, Buffer, Buffers
from harena.azr.tasks.kinds import InductionTask, TaskKind, Triplet
from harena.errors import SpecError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def task(number: int) -> Triplet:
    return Triplet(program=f"def f(x):\n    return x + {number}", input="1", output=str(1 + number))


def filled(count: int, *, capacity: int = 100) -> Buffer:
    made = Buffer(TaskKind.DEDUCTION, capacity=capacity)
    for number in range(count):
        made.add(task(number), step=number, rng=rng(number))
    return made


def test_buffers_start_with_the_identity() -> None:
    made = Buffers()
    made.start(inputs=6, rng=rng())
    assert (
        [entry.task for entry in made[TaskKind.DEDUCTION]]
        == [entry.task for entry in made[TaskKind.ABDUCTION]]
        == [tasks.IDENTITY]
    )
    [induction] = [entry.task for entry in made[TaskKind.INDUCTION]]
    assert isinstance(induction, InductionTask)
    assert len(induction.pairs) == 6


def test_the_same_program_enters_once_whatever_its_names() -> None:
    made = Buffer(TaskKind.ABDUCTION)
    assert made.add(task(1), step=1, rng=rng())
    renamed = Triplet(program="def f(value):  # the same\n  return value+1", input="5", output="6")
    assert made.has_seen(renamed)
    assert not made.add(renamed, step=2, rng=rng())
    assert len(made) == 1


def test_an_induction_task_is_another_one_with_other_inputs() -> None:
    made = Buffer(TaskKind.INDUCTION)
    for inputs in (("1", "2"), ("2", "1"), ("1", "3")):
        made.add(
            InductionTask(program=task(0).program, message="", pairs=tuple((given, given) for given in inputs)),
            step=0,
            rng=rng(),
        )
    assert len(made) == 2


def test_a_full_buffer_takes_what_is_new_and_lets_something_old_go() -> None:
    made = filled(300, capacity=50)
    steps = [entry.step for entry in made]
    assert len(made) == 50
    assert 299 in steps
    assert min(steps) > 100, "the oldest do not stay for ever"
    assert steps == sorted(steps)
    assert made.has_seen(task(280))


def test_what_left_is_remembered_for_a_while_and_memory_is_bounded() -> None:
    made = filled(300, capacity=20)
    assert made.has_seen(task(299 - 8 * 20 + 5))
    assert not made.has_seen(task(0))
    assert len(made.state()["seen"]) == 8 * 20


def test_samples_are_uniform_without_repeats_and_by_the_generator_given() -> None:
    made = filled(10)
    ids = [entry.id for entry in made.sample(6, rng=rng(1))]
    assert len(set(ids)) == 6
    assert ids == [entry.id for entry in made.sample(6, rng=rng(1))]
    assert len(made.sample(20, rng=rng())) == 10
    counts = np.zeros(10)
    generator = rng(2)
    for _ in range(600):
        for entry in made.sample(5, rng=generator):
            counts[entry.step] += 1
    assert counts.min() > 240
    assert counts.max() < 360


def test_a_short_batch_is_filled() -> None:
    made = filled(3)
    assert len(made.fill(8, rng=rng())) == 8
    assert {entry.step for entry in made.fill(8, rng=rng())} == {0, 1, 2}
    assert made.fill(0, rng=rng()) == []
    with pytest.raises(SpecError, match="empty"):
        Buffer(TaskKind.DEDUCTION).fill(1, rng=rng())


def test_induction_proposers_see_one_program_of_either_buffer() -> None:
    made = Buffers()
    made[TaskKind.DEDUCTION].add(task(1), step=0, rng=rng())
    made[TaskKind.ABDUCTION].add(task(2), step=0, rng=rng())
    generator = rng()
    seen = {tuple(one.program for one in made.references(TaskKind.INDUCTION, 6, rng=generator)) for _ in range(30)}
    assert seen == {(task(1).program,), (task(2).program,)}


def test_a_buffer_comes_back_from_its_file_and_from_its_state(tmp_path: Path) -> None:
    made = Buffers(capacity=10)
    made.keep_in(tmp_path)
    made.start(rng=rng())
    for number in range(25):
        made[TaskKind.DEDUCTION].add(task(number), step=number, rng=rng(number), share=0.5)
    again = buffer.read(tmp_path / "deduction.jsonl")
    assert {entry.id for entry in made[TaskKind.DEDUCTION]} <= {entry.id for entry in again}
    other = Buffers(capacity=10)
    other.load(json.loads(json.dumps(made.state())))
    assert other.state() == made.state()
    assert [*other[TaskKind.DEDUCTION]] == [*made[TaskKind.DEDUCTION]]


def test_a_file_stays_small_while_tasks_come_and_go(tmp_path: Path) -> None:
    made = Buffer(TaskKind.DEDUCTION, capacity=10)
    made.keep_in(tmp_path / "d.jsonl")
    for number in range(200):
        made.add(task(number), step=number, rng=rng(number))
    assert len((tmp_path / "d.jsonl").read_text().splitlines()) <= 20
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"]


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    made = filled(3)
    path = tmp_path / "d.jsonl"
    made.keep_in(path)
    with path.open("a") as file:
        file.write('{"id": "x", "ste')
    assert len(buffer.read(path)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        "nonsense",
        '{"program": 1, "input": "", "output": "", "step": 0, "share": null}',
        '{"program": "", "pairs": [[1, 2]], "message": "", "step": 0, "share": null}',
        '{"program": "", "input": "", "output": "", "step": "1", "share": null}',
        "[" * 100_000,
        '{"program": "", "input": "", "output": "", "step": -1, "share": null}',
        '{"program": "", "input": "", "output": "", "step": 1, "share": NaN}',
        '{"program": "", "input": "", "output": "", "step": 1, "share": 1e999}',
        '{"program": "", "input": "", "output": "", "step": 1, "share": true}',
        '{"program": "", "pairs": [], "message": "", "step": 0, "share": null}',
        '{"program": "", "pairs": [["1", "2"]], "message": "", "step": 0, "share": null}',
        '{"program": "", "pairs": ["12", "34"], "message": "", "step": 0, "share": null}',
        '{"program": "", "pairs": {"12": 1, "34": 1}, "message": "", "step": 0, "share": null}',
        '{"program": "\\ud800", "input": "", "output": "", "step": 1, "share": null}',
    ],
)
def test_a_file_that_holds_something_else_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "d.jsonl"
    filled(1).keep_in(path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadBuffer, match="line 2"):
        buffer.read(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(BadBuffer, match="UTF-8"):
        buffer.read(path)


def test_a_state_with_tasks_of_another_kind_is_refused() -> None:
    state = filled(2).state()
    with pytest.raises(BadBuffer, match="another kind"):
        Buffer(TaskKind.INDUCTION).load(state)
    with pytest.raises(BadBuffer, match="seen"):
        Buffer(TaskKind.DEDUCTION).load(state | {"seen": [["a"]]})


def test_an_address_is_that_of_the_content() -> None:
    assert buffer.address(task(1)) == buffer.address(task(1)) != buffer.address(task(2))
