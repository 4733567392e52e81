from __future__ import annotations

import itertools
import random

import pytest
import sqlalchemy as sa

from harena.arena.db import models
from harena.arena.db.models import EnvironmentKind, Event, State, SubmissionKind
from harena.arena.db.records import EvaluationOutcome, Filter, Sort
from harena.arena.db.results import boards as boards_module
from harena.arena.db.store import Store
from support.entries import ENV, names, ranked


def test_the_board_has_the_best_of_each_owner_and_algorithm(store, clock):
    for owner, algorithm, score in (
        ("ann", "A", 1),
        ("ann", "A", 5),
        ("ann", "A", 3),
        ("ann", "B", 4),
        ("bob", "A", 5),
    ):
        clock.now += 1
        ranked(store, float(score), owner, algorithm)
    assert names(store.boards.top(ENV)) == [("ann", "A", 5.0), ("bob", "A", 5.0), ("ann", "B", 4.0)]
    assert names(store.boards.top(ENV, limit=1, offset=1)) == [("bob", "A", 5.0)]
    assert store.boards.top("other") == []


def test_filters_and_sorts(store, clock):
    for n, (owner, algorithm) in enumerate(itertools.product(("ann", "bob", "cat"), ("A", "B"))):
        clock.now = 1000.0 + n
        ranked(store, float(n), owner, algorithm)

    def scores(sort=Sort.SCORE_DESC, **where):
        return [entry.score for entry in store.boards.top(ENV, where=Filter(**where), sort=sort)]

    assert scores() == [5, 4, 3, 2, 1, 0]
    assert scores(user="bob") == [3, 2]
    assert scores(user="nobody") == []
    assert scores(algorithm="A") == [4, 2, 0]
    assert scores(score_min=2, score_max=4) == [4, 3, 2]
    assert scores(date_from=1003.0) == [5, 4, 3]
    assert scores(date_from=1001.0, date_to=1002.0, algorithm="B") == [1]
    assert scores(Sort.DATE_ASC) == [0, 1, 2, 3, 4, 5]
    assert scores(Sort.DATE_DESC, algorithm="B") == [5, 3, 1]


def test_a_self_reported_score_never_stands_with_verified_ones(store):
    ranked(store, 1.0, "ann", "A")
    ranked(store, 1e9, "eve", "A", kind=SubmissionKind.SELF_REPORTED)
    ranked(store, 1e9, "ann", "A", kind=SubmissionKind.SELF_REPORTED)
    for sort in Sort:
        assert names(store.boards.top(ENV, sort=sort)) == [("ann", "A", 1.0)]
    assert len(store.boards.top(ENV, kind=SubmissionKind.SELF_REPORTED)) == 2


def test_a_submission_that_changes_its_kind_takes_no_score_along(store):
    cheat = ranked(store, 1e9, kind=SubmissionKind.SELF_REPORTED)
    store.submissions.move(cheat.id, Event.REEVALUATE)
    store.submissions.move(cheat.id, Event.CANCEL)
    store.submissions.move(cheat.id, Event.REEVALUATE)
    assert store.submissions.check(cheat.id, SubmissionKind.VERIFIED).score is None
    assert store.boards.top(ENV) == store.boards.top(ENV, kind=SubmissionKind.SELF_REPORTED) == []


def test_deleting_the_best_brings_the_next_one_back(store):
    ranked(store, 1.0)
    best = ranked(store, 2.0)
    store.submissions.delete(best.id)
    assert names(store.boards.top(ENV)) == [("ann", "DQN", 1.0)]


def test_a_platform_fault_leaves_the_score_and_the_agents_own_takes_it(store):
    made = ranked(store, 7.0)
    store.submissions.move(made.id, Event.REEVALUATE)
    store.submissions.fail(made.id, "box lost", platform=True)
    assert names(store.boards.top(ENV)) == [("ann", "DQN", 7.0)]
    store.submissions.move(made.id, Event.REEVALUATE)
    store.submissions.fail(made.id, "it crashed", platform=False)
    assert store.boards.top(ENV) == []


def test_a_lower_score_replaces_the_one_that_was_evaluated_again(store):
    made = ranked(store, 7.0)
    store.submissions.move(made.id, Event.REEVALUATE)
    store.submissions.move(made.id, Event.START)
    store.submissions.rank(made.id, EvaluationOutcome(score=3.0))
    assert names(store.boards.top(ENV)) == [("ann", "DQN", 3.0)]
    assert [found.score for found in store.submissions.evaluations(made.id)] == [7.0, 3.0]


@pytest.mark.parametrize(
    ("where", "sort", "index"),
    [
        (Filter(), Sort.SCORE_DESC, "board_by_score"),
        (Filter(score_min=0.5), Sort.SCORE_DESC, "board_by_score"),
        (Filter(algorithm="A1"), Sort.SCORE_DESC, "board_of_algorithm"),
        (Filter(), Sort.DATE_DESC, "board_by_date"),
        (Filter(date_from=5.0), Sort.DATE_ASC, "board_by_date"),
        (Filter(date_from=1.0), Sort.SCORE_DESC, "board_by_score"),
        (Filter(date_from=1.0, algorithm="A1"), Sort.SCORE_DESC, "board_of_algorithm"),
        (Filter(score_max=0.9), Sort.DATE_DESC, "board_by_date"),
    ],
)
def test_a_board_of_20_000_is_read_by_index_and_never_sorted(full, where, sort, index):
    plan, found = plan_and_board(full, where, sort)
    assert f"USING INDEX {index} " in plan
    assert "TEMP B-TREE" not in plan
    assert len(found) == 50


@pytest.mark.parametrize(
    ("where", "sort", "index"),
    [
        (Filter(user="owner 7"), Sort.SCORE_DESC, "sqlite_autoindex_board_1"),
        (Filter(user="owner 7", date_from=0.0), Sort.DATE_DESC, "sqlite_autoindex_board_1"),
        (Filter(date_from=9.99), Sort.SCORE_DESC, "board_by_date"),
        (Filter(score_min=0.999), Sort.DATE_ASC, "board_by_score"),
    ],
)
def test_a_narrow_filter_is_read_by_its_own_index(full, where, sort, index):
    plan, found = plan_and_board(full, where, sort)
    assert f"USING INDEX {index} " in plan
    everything = full.boards.top(ENV, where=where, sort=sort, limit=1000)
    keys = [-entry.score if sort is Sort.SCORE_DESC else entry.at for entry in everything]
    assert keys == sorted(keys, reverse=sort is Sort.DATE_DESC)
    assert found == everything[:50] != []


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('full')}/arena.db")
    store.environments.put(ENV, EnvironmentKind.VERIFIED)
    fill(store, 20_000)
    yield store
    store.close()


def plan_and_board(store, where, sort):
    executed = []

    def keep(_connection, _cursor, statement, parameters, *_):
        executed.append((statement, parameters))

    sa.event.listen(store.database.engine, "after_cursor_execute", keep)
    found = store.boards.top(ENV, where=where, sort=sort)
    sa.event.remove(store.database.engine, "after_cursor_execute", keep)
    statement, parameters = executed[-1]
    with store.database.read() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    return " ".join(row[3] for row in rows), found


def fill(store, n):
    rng = random.Random(4)
    with store.begin() as connection:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        connection.execute(
            models.owners.insert(), [{"id": f"o{i}", "name": f"owner {i}", "created_at": 0.0} for i in range(n // 10)]
        )
        base = {
            "env_id": ENV,
            "season_id": None,
            "client_id": None,
            "main_file": "a.py",
            "digest": "0",
            "version": 1,
            "kind": SubmissionKind.VERIFIED,
            "state": State.RANKED,
            "reason": "",
            "updated_at": 0.0,
        }
        rows = [
            base
            | {
                "id": f"s{i}",
                "owner_id": f"o{i // 10}",
                "algorithm": f"A{i % 10}",
                "score": rng.random(),
                "created_at": rng.random() * 10,
            }
            for i in range(n)
        ]
        connection.execute(models.submissions.insert(), rows)
        entries = [
            {
                "submission_id": row["id"],
                "at": row["created_at"],
                **{name: row[name] for name in ("env_id", "kind", "owner_id", "algorithm", "score")},
            }
            for row in rows
        ]
        connection.execute(models.board.insert(), entries)


# ---- names that many owners share ----


def test_a_name_finds_its_owner_and_those_with_marks_and_nobody_else(store):
    others = ("ann#", "ann#0123456", "ann#0123456x9", "ann$", "ann#0123abcd#", "Ann", "annä", "an", "anna#0123abcd")
    for number, owner in enumerate(("ann", "ann#0123abcd", "ann#ffffffff", *others)):
        ranked(store, float(number), owner, "A")
    found = {entry.owner for entry in store.boards.top(ENV, where=Filter(user="ann"))}
    assert {"ann", "ann#0123abcd", "ann#ffffffff"} <= found
    assert found <= {owner for owner in ("ann", "ann#0123abcd", "ann#ffffffff", *others) if len(owner) in (3, 12)}
    assert found.isdisjoint({"Ann", "annä", "anna#0123abcd", "ann#"})
    assert store.boards.size(ENV, where=Filter(user="ann")) == len(found)


def test_owners_of_a_name_are_found_by_an_index(store):
    query = sa.select(models.owners.c.id).where(models.named(models.owners.c.name, "ann"))
    sqlite = store.database.engine.dialect.name == "sqlite"
    with store.begin() as connection:
        rows = [{"id": f"{n:032x}", "name": f"owner {n}", "created_at": 0.0} for n in range(2000)]
        connection.execute(models.owners.insert(), rows)
        if not sqlite:
            connection.exec_driver_sql("ANALYZE owners")
        text = query.compile(connection, compile_kwargs={"literal_binds": True})
        explained = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' if sqlite else ''}{text}").all()
    plan = " ".join(str(row[-1]) for row in explained)
    assert "SCAN owners" not in plan, plan
    assert "Seq Scan" not in plan, plan
    assert sqlite or "owners_by_bytes" in plan, plan


@pytest.mark.parametrize("sort", Sort)
def test_a_common_name_gives_the_same_board_in_the_same_order(store, clock, monkeypatch, sort):
    rng = random.Random(7)
    for number in range(12):
        clock.now += 1
        owner = f"anonymous#{number:08x}" if number % 2 else f"owner {number}"
        ranked(store, rng.random(), owner, f"A{number % 3}")
    filters = [Filter(user="anonymous"), Filter(user="anonymous", algorithm="A1")]
    filters += [Filter(user="anonymous", date_from=clock.now - 5), Filter(user="anonymous", score_min=0.3)]

    def everything():
        return [
            (store.boards.top(ENV, where=where, sort=sort), store.boards.size(ENV, where=where)) for where in filters
        ]

    few = everything()
    assert len(few[0][0]) == 6
    monkeypatch.setattr(boards_module, "COMMON", 2)
    assert everything() == few
