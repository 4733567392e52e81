from __future__ import annotations

import ast
from random import Random

import pytest

from harena.azr.tasks import programs
from harena.azr.tasks.corpus import Documents, DocumentStream, Mix, as_task
from harena.azr.tasks.kinds import FormatError, InductionTask, Role, TaskKind, Triplet
from harena.azr.tasks.prompts import parse_propose, parse_solve
from harena.errors import SpecError


def run(example: programs.Example) -> list[str]:
    scope: dict[str, object] = {}
    exec(example.program, scope)
    return [repr(eval(f"f({given})", scope)) for given in example.inputs]  # noqa: S307  # our own generator's text


def test_outputs_are_what_the_programs_give() -> None:
    rng = Random(0)
    for number in range(300):
        example = programs.draw(rng, ops=1 + number % 4, inputs=1 + number % 5)
        assert run(example) == list(example.outputs), example.program


def test_the_same_seed_gives_the_same_programs() -> None:
    a, b = Random(5), Random(5)
    assert [programs.draw(a, ops=3) for _ in range(20)] == [programs.draw(b, ops=3) for _ in range(20)]


def test_inputs_and_outputs_are_literals_and_short() -> None:
    rng = Random(1)
    for number in range(200):
        example = programs.draw(rng, ops=1 + number % 4)
        ast.literal_eval(f"({example.inputs[0]},)")
        ast.literal_eval(example.outputs[0])
        assert len(example.outputs[0]) <= programs.MAX_OUTPUT_CHARS


def test_inputs_are_distinct_and_tell_programs_apart() -> None:
    rng = Random(2)
    for _ in range(60):
        example = programs.draw(rng, ops=2, inputs=6)
        assert len(set(example.inputs)) == 6
        assert len(set(example.outputs)) >= 3


def test_training_never_meets_a_held_out_program() -> None:
    rng = Random(3)
    seen = {programs.draw(rng, ops=1 + n % 4).key for n in range(600)}
    kept = {programs.draw(rng, ops=1 + n % 4, held_out=True).key for n in range(200)}
    assert not seen & kept
    assert all(programs.is_held_out(key) for key in kept)


def test_the_split_looks_past_names_and_layout() -> None:
    """Programs of one key differ in text: the key is of what is done."""
    rng = Random(4)
    texts: dict[str, set[str]] = {}
    for _ in range(1500):
        example = programs.draw(rng, ops=1)
        texts.setdefault(example.key, set()).add(example.program)
    assert any(len(found) > 1 for found in texts.values())


def test_more_operations_make_longer_programs() -> None:
    rng = Random(6)
    mean = [sum(len(programs.draw(rng, ops=n).program) for _ in range(150)) / 150 for n in (1, 2, 3, 4)]
    assert mean == sorted(mean)


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(SpecError):
        programs.draw(Random(0), ops=5)


def test_documents_are_what_the_parsers_read() -> None:
    documents = Documents(7, Mix())
    for role in Role:
        for kind in TaskKind:
            for _ in range(12):
                _, completion = documents.one(role, kind)
                assert completion.endswith("\n\n")
                if role is Role.SOLVE:
                    parsed = parse_solve(kind, completion)
                else:
                    reference = Triplet(program="def f(a):\n    return a", input="1", output="1")
                    parsed = parse_propose(kind, completion, reference=reference)
                assert not isinstance(parsed, FormatError), (role, kind, completion, parsed)


def test_batches_are_the_same_for_a_seed_and_hold_whole_documents() -> None:
    stream = DocumentStream(seed=9, tokens=1024, shard=64)
    first, second = stream.batches(), stream.batches()
    for _ in range(6):
        a, b = next(first), next(second)
        assert (a.ids == b.ids).all()
        assert a.ids.size <= 1024 or len(a.ids) == 1
        for row, begin, end in zip(a.ids, a.begins, a.ends, strict=True):
            assert 0 < begin < end <= len(row)
            assert not row[end:].any()


def test_an_example_becomes_the_task_of_its_kind() -> None:
    example = programs.draw(Random(0), ops=2, inputs=6)
    assert isinstance(as_task(TaskKind.INDUCTION, example), InductionTask)
    assert as_task(TaskKind.ABDUCTION, example) == Triplet(
        program=example.program, input=example.inputs[0], output=example.outputs[0]
    )
