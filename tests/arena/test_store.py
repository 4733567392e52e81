from __future__ import annotations

import itertools
import threading

import pytest

from harena.arena.db import models
from harena.arena.db.models import (
    Conflict,
    EnvironmentKind,
    Event,
    IllegalTransition,
    NotFound,
    QuotaExceeded,
    State,
    SubmissionKind,
    transition,
)
from harena.arena.db.records import DefaultQuota, EvaluationOutcome, Filter
from harena.errors import SpecError
from support.entries import ENV, ranked, started, submit

HOSTILE = [
    "Robert'); DROP TABLE submissions;--",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a" * 200,
    "../../etc/passwd",
    "%00%s%n",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "Zoë 🏆 中文 \u0301",
    "' OR 1=1 --",
    ":x ?",
    "שלום",
]


# ---- states ----


def test_the_way_of_a_submission(store, clock):
    made = submit(store, client_id="5c0e", kind=SubmissionKind.SELF_REPORTED)
    assert (made.state, made.version, made.owner, made.client_id) == (State.RECEIVED, 1, "ann", "5c0e")
    clock.now += 1
    store.submissions.check(made.id, SubmissionKind.VERIFIED)
    store.submissions.move(made.id, Event.QUEUE)
    store.submissions.move(made.id, Event.START)
    done = store.submissions.rank(
        made.id,
        EvaluationOutcome(score=9.5, low=9.0, high=10.0, episodes=20, metrics={"iqm": 9.4}),
        log_digest="1" * 64,
    )
    assert (done.state, done.kind, done.score, done.log_digest) == (
        State.RANKED,
        SubmissionKind.VERIFIED,
        9.5,
        "1" * 64,
    )
    assert store.submissions.evaluations(made.id)[0].metrics == {"iqm": 9.4}
    told = [notice.body["state"] for notice in store.events.after(0, topic=f"submission:{made.id}")]
    assert told == ["received", "checked", "queued", "running", "ranked"]


def test_every_pair_outside_the_table_is_refused():
    for state, event in itertools.product(State, Event):
        if (state, event) in models.TRANSITIONS:
            assert transition(state, event) is models.TRANSITIONS[state, event]
        else:
            with pytest.raises(IllegalTransition, match=f"a {state} submission cannot {event}"):
                transition(state, event)


def test_no_submission_is_queued_unchecked_or_ranked_without_running():
    assert {at for (at, _), to in models.TRANSITIONS.items() if to is State.QUEUED} == {
        State.CHECKED,
        State.RUNNING,
        State.RANKED,
    }
    assert {at for (at, _), to in models.TRANSITIONS.items() if to is State.RANKED} == {State.RUNNING}


def test_an_illegal_transition_changes_nothing(store):
    made, before = submit(store), store.events.last()
    for call in (
        lambda: store.submissions.rank(made.id, EvaluationOutcome(score=1e9)),
        lambda: store.submissions.move(made.id, Event.START),
    ):
        with pytest.raises(IllegalTransition):
            call()
    assert store.submissions.get(made.id) == made
    assert (store.submissions.evaluations(made.id), store.boards.top(ENV), store.events.last()) == ([], [], before)


def test_who_saw_an_older_state_does_not_move_it(store):
    made = submit(store)
    store.submissions.move(made.id, Event.CANCEL, seen=State.RECEIVED)
    with pytest.raises(Conflict):
        store.submissions.move(made.id, Event.REEVALUATE, seen=State.FAILED)


def test_of_many_threads_one_starts_a_submission(store):
    made = submit(store)
    store.submissions.check(made.id, SubmissionKind.VERIFIED)
    store.submissions.move(made.id, Event.QUEUE)
    outcomes = []

    def start():
        try:
            outcomes.append(store.submissions.move(made.id, Event.START).state)
        except IllegalTransition:
            outcomes.append(None)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(State.RUNNING) == 1


def test_versions_count_for_each_owner_and_algorithm(store):
    made = [
        submit(store, *who).version for who in (("ann", "A"), ("ann", "A"), ("ann", "B"), ("bob", "A"), ("ann", "A"))
    ]
    assert made == [1, 2, 1, 1, 3]


def test_lists_are_newest_first_and_without_the_deleted(store, clock):
    made = []
    for _ in range(3):
        clock.now += 1
        made.append(ranked(store, 1.0).id)
    store.submissions.delete(made[1])
    assert [found.id for found in store.submissions.of("ann")] == [made[2], made[0]]
    assert [found.id for found in store.submissions.in_states([State.RANKED])] == made
    with pytest.raises(Conflict, match="cancel it first"):
        store.submissions.delete(submit(store).id)


# ---- what users send ----


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_back_unchanged(store, text):
    made = submit(store, text, text, client_id=text)
    found = store.submissions.get(made.id)
    assert (found.owner, found.algorithm, found.client_id) == (text, text, text)
    store.submissions.fail(made.id, text, platform=False)
    assert store.submissions.get(made.id).reason == text
    store.events.publish("board:x", "x", {text: text})
    assert store.events.after(0, topic="board:x")[0].body == {text: text}
    ranked(store, 1.0, text, text)
    assert [entry.owner for entry in store.boards.top(ENV, where=Filter(user=text, algorithm=text))] == [text]
    assert store.environments.get(ENV).kind is EnvironmentKind.VERIFIED


@pytest.mark.parametrize("text", ["", "a" * 201, "nul\0", "lone \ud800", None, 7, b"ann", ["ann"]])
def test_text_that_a_database_could_not_give_back_is_refused(store, text):
    for call in (lambda: submit(store, text), lambda: submit(store, "ann", text)):
        with pytest.raises(SpecError):
            call()
    assert store.submissions.of("ann") == []


def test_a_reason_is_cut_and_kept_whatever_it_quotes(store):
    failed = store.submissions.fail(submit(store).id, "\ud800\0" + "x" * 10_000, platform=True)
    assert failed.reason.startswith("?\ufffdxxx")
    assert len(failed.reason) == models.MAX_REASON


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_is_a_finite_number(score):
    with pytest.raises(SpecError):
        EvaluationOutcome(score=score)


def test_metrics_that_are_no_json_leave_the_submission_running(store):
    made = started(store)
    for outcome in ({"metrics": {"n": float("nan")}}, {"metrics": {"n": b""}}, {"metrics": {"n": "x" * (2 << 20)}}):
        with pytest.raises(SpecError, match="JSON"):
            store.submissions.rank(made.id, EvaluationOutcome(score=1.0, **outcome))
    with pytest.raises(SpecError, match="digest"):
        store.submissions.rank(made.id, EvaluationOutcome(score=1.0), log_digest="../../etc/passwd")
    assert store.submissions.get(made.id).state is State.RUNNING
    assert store.boards.top(ENV) == []


def test_states_that_carry_more_are_not_reached_by_a_bare_move(store):
    made = started(store)
    for event in (Event.RANK, Event.FAIL, Event.REJECT, Event.CHECK):
        with pytest.raises(SpecError, match=f"use the method {event}"):
            store.submissions.move(made.id, event)


def test_a_search_for_the_impossible_is_the_callers_error(store):
    for call in (
        lambda: store.submissions.get("\ud800"),
        lambda: store.boards.top("\ud800"),
        lambda: store.seasons.get(10**30),
        lambda: store.boards.top(ENV, where=Filter(user="\udfff")),
        lambda: store.boards.top(ENV, offset=10**30),
        lambda: store.events.after(10**30),
        lambda: store.owners.find("\ud800"),
        lambda: store.matches.get("\ud800"),
    ):
        with pytest.raises(SpecError, match="no database can hold"):
            call()


def test_unknown_ids_are_not_found(store):
    for call in (
        lambda: store.submissions.get("x"),
        lambda: store.submissions.move("' OR 1=1", Event.CANCEL),
        lambda: store.environments.get("x"),
        lambda: store.submissions.add("ann", "nope", algorithm="A", digest="0" * 64, main_file="a.py"),
        lambda: store.matches.get("x"),
        lambda: store.keys.get("x"),
    ):
        with pytest.raises(NotFound):
            call()
    store.environments.put(ENV, EnvironmentKind.VERIFIED, enabled=False)
    with pytest.raises(Conflict, match="switched it off"):
        submit(store)


# ---- quotas ----


def test_quota_at_once_is_free_again_when_one_ends(store):
    quota = DefaultQuota(per_day=10, at_once=2)
    first, _ = submit(store, quota=quota), submit(store, quota=quota)
    with pytest.raises(QuotaExceeded, match="at once"):
        submit(store, quota=quota)
    submit(store, "bob", quota=quota)
    store.submissions.move(first.id, Event.CANCEL)
    submit(store, quota=quota)
    assert store.quotas.used("ann") == (3, 2)


def test_quota_of_a_day_comes_back_the_next_day(store, clock):
    quota = DefaultQuota(per_day=1, at_once=None)
    submit(store, quota=quota)
    with pytest.raises(QuotaExceeded, match="00:00 UTC"):
        submit(store, quota=quota)
    clock.now += 86400
    submit(store, quota=quota)
    store.owners.set_quota("ann", per_day=3, at_once=None)
    submit(store, quota=quota)


def test_a_platform_fault_gives_the_quota_back_once_and_an_agents_does_not(store):
    ours, theirs = submit(store), submit(store)
    store.submissions.fail(theirs.id, "exit 1", platform=False)
    assert store.quotas.used("ann") == (2, 1)
    store.submissions.fail(ours.id, "box lost", platform=True)
    assert store.quotas.used("ann") == (1, 0)
    store.submissions.move(ours.id, Event.REEVALUATE)
    store.submissions.fail(ours.id, "box lost again", platform=True)
    assert store.quotas.refund(ours.id) is False
    assert store.quotas.used("ann") == (1, 0)


def test_of_many_threads_one_gives_the_quota_back(store):
    made, given = submit(store), []
    threads = [threading.Thread(target=lambda: given.append(store.quotas.refund(made.id))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == [False] * 7 + [True]


def test_threads_cannot_submit_more_than_the_quota(store):
    outcomes = []

    def send():
        try:
            outcomes.append(submit(store, quota=DefaultQuota(per_day=5, at_once=None)).version)
        except QuotaExceeded:
            outcomes.append(0)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [0] * 7 + [1, 2, 3, 4, 5]


def test_each_evaluation_is_charged_and_only_the_last_charge_is_given_back(store):
    made = ranked(store, 1.0)
    store.submissions.charge_again(made.id, DefaultQuota())
    assert store.quotas.used("ann") == (2, 0)
    assert store.quotas.refund(made.id) is True
    assert store.quotas.refund(made.id) is False
    assert store.quotas.used("ann") == (1, 0)
    with pytest.raises(QuotaExceeded):
        store.submissions.charge_again(made.id, DefaultQuota(per_day=1))
    with pytest.raises(QuotaExceeded):
        store.quotas.check("ann", DefaultQuota(per_day=1))
    store.quotas.check("nobody", DefaultQuota(per_day=0))
    assert store.owners.find("nobody") is None


# ---- lists ----


def test_submissions_are_found_by_who_where_what_and_state(store, clock):
    made = []
    for number, (owner, algorithm) in enumerate([("ann", "A"), ("ann", "B"), ("bob", "A")]):
        clock.now += 1
        made.append(submit(store, owner, algorithm, client_id=f"c{number}", anonymous=owner == "bob"))
    store.submissions.move(made[0].id, Event.CANCEL)

    def found(**where):
        return [made.index(one) if one in made else 0 for one in store.submissions.where(**where)]

    assert found() == [2, 1, 0]
    assert found(owner="ann") == [1, 0]
    assert found(algorithm="A", env_id=ENV) == [2, 0]
    assert found(states=[State.CANCELLED]) == [0]
    assert found(limit=1, offset=1) == [1]
    assert found(client_id="c2") == [2]
    assert found(client_id="c1") == []  # it was sent with a key
    store.submissions.delete(made[0].id)
    assert found() == [2, 1]
    assert store.submissions.code_is_used("0" * 64)
    assert not store.submissions.code_is_used("1" * 64)


def test_totals_count_entries_and_submissions(store):
    ranked(store, 1.0)
    ranked(store, 2.0)
    ranked(store, 3.0, "bob")
    assert store.submissions.totals() == {ENV: (2, 3)}
    assert store.boards.size(ENV) == 2
    assert store.boards.size(ENV, where=Filter(score_min=2.5)) == store.boards.size(ENV, where=Filter(user="bob")) == 1
    assert store.boards.size(ENV, kind=SubmissionKind.SELF_REPORTED) == 0


def test_entering_a_ladder_is_ranked_without_a_score(store):
    made = started(store)
    entered = store.submissions.enter(made.id, warnings=["slow", "slow"])
    assert (entered.state, entered.score, entered.warnings) == (State.RANKED, None, "slow")
    assert (store.boards.top(ENV), store.submissions.evaluations(made.id)) == ([], [])


def test_pruned_events_leave_the_last_one(store, clock):
    for number in range(5):
        clock.now += 10
        store.events.publish("queue", "n", {"n": number})
    last = store.events.last()
    assert store.events.prune(older_than_s=15, keep=100) == 3
    assert [notice.body["n"] for notice in store.events.after(0)] == [3, 4]
    assert store.events.first() == last - 1
    clock.now += 1000
    assert store.events.prune(older_than_s=15, keep=0) == 1
    assert store.events.last() == store.events.first() == last
