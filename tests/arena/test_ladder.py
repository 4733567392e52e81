from __future__ import annotations

import pytest

from harena.arena.db.ladder.matches import Seated
from harena.arena.db.models import Conflict, MatchKind, MatchState, NotFound
from harena.errors import SpecError
from support.entries import ENV, ranked

KINDS = (MatchKind.LADDER, MatchKind.CHALLENGE)


@pytest.fixture
def pair(store):
    return [ranked(store, 1.0, "ann").id, ranked(store, 1.0, "bob").id]


def play(store, match, scores=(1.0, 0.0)):
    came = seated(*scores, last="crash")
    return store.matches.finish(match.id, MatchState.FINISHED, seats=came, winner=0, replay_digest="2" * 64)


def seated(*scores, last="ok"):
    statuses = ["ok"] * (len(scores) - 1) + [last]
    return [Seated(score=score, status=status) for score, status in zip(scores, statuses, strict=False)]


def test_a_match_ends_once_and_keeps_its_result(store, pair):
    seed = (1 << 64) - 1
    match = store.matches.create(ENV, pair, seed=seed)
    done = play(store, match)
    assert (done.seed, done.winner, done.replay_digest) == (seed, 0, "2" * 64)
    assert [(seat.submission_id, seat.score, seat.status) for seat in done.seats] == [
        (pair[0], 1.0, "ok"),
        (pair[1], 0.0, "crash"),
    ]
    for state, scores in ((MatchState.FINISHED, (0.0, 1.0)), (MatchState.VOID, ())):
        with pytest.raises(Conflict):
            store.matches.finish(match.id, state, seats=seated(*scores))
    assert store.matches.get(match.id) == done


def test_the_log_is_in_order_of_creation_and_stops_at_an_open_match(store, pair):
    made = [store.matches.create(ENV, pair, seed=n, kind=KINDS[n == 1]) for n in range(6)]
    assert [match.number for match in made] == sorted(match.number for match in made)
    for n in (5, 1, 0, 3):
        play(store, made[n])
    assert [match.seed for match in store.matches.log(ENV)] == [0]
    store.matches.finish(made[2].id, MatchState.VOID, reason="box lost")
    assert [match.seed for match in store.matches.log(ENV)] == [0, 3]
    play(store, made[4])
    assert [match.seed for match in store.matches.log(ENV)] == [0, 3, 4, 5]
    assert [match.seed for match in store.matches.log(ENV, after=made[0].number, limit=2)] == [3, 4]
    assert [match.seed for match in store.matches.of(pair[0], limit=2)] == [5, 4]


def test_no_match_moves_a_rating_twice_and_a_void_one_none(store, pair):
    match, void, challenge = (store.matches.create(ENV, pair, seed=0, kind=KINDS[other]) for other in (0, 0, 1))
    after = {pair[0]: (26.0, 8.0), pair[1]: (24.0, 8.0)}
    with pytest.raises(Conflict):
        store.ratings.record({match.number: after})
    play(store, match)
    play(store, challenge)
    store.matches.finish(void.id, MatchState.VOID)
    store.ratings.record({match.number: after})
    for number in (match.number, void.number, challenge.number, 10**6):
        with pytest.raises(Conflict):
            store.ratings.record({number: after})
    assert {key: rating.mu for key, rating in store.ratings.latest(ENV).items()} == {pair[0]: 26.0, pair[1]: 24.0}
    assert len(store.ratings.history(pair[0])) == 1
    assert store.ratings.rated_up_to(ENV) == match.number


def test_bad_matches_are_refused(store, pair):
    for call in (
        lambda: store.matches.create(ENV, pair, seed=-1),
        lambda: store.matches.create(ENV, pair, seed=1 << 64),
        lambda: store.matches.create(ENV, [], seed=0),
    ):
        with pytest.raises(SpecError):
            call()
    with pytest.raises(NotFound):
        store.matches.create(ENV, [pair[0], "nobody"], seed=0)
    match = store.matches.create(ENV, pair, seed=0)
    for scores, winner in (((1.0,), None), ((1.0, float("nan")), None), ((1.0, 0.0), 2), ((1.0, 0.0), -1)):
        with pytest.raises(SpecError):
            store.matches.finish(match.id, MatchState.FINISHED, seats=seated(*scores), winner=winner)
    play(store, match)
    with pytest.raises(SpecError):
        store.ratings.record({match.number: {"stranger": (25.0, 8.0)}})
