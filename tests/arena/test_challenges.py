"""A challenge is between two chosen agents and moves no rating."""

from __future__ import annotations

import pytest

from harena.arena.db.models import EnvironmentKind, MatchKind, NotFound, QuotaExceeded
from harena.arena.ladder.challenges import MAX_GAMES, MAX_OPEN
from harena.arena.ladder.fold import Fold
from harena.errors import SpecError
from support.ladders import GAME, Bench


@pytest.fixture
def bench(tmp_path, two_workers):
    bench = Bench(tmp_path, two_workers)
    yield bench
    bench.close()


def test_the_two_change_seats_on_seeds_of_their_own_and_no_rating_moves(bench):
    mine, other = bench.enter("ann"), bench.enter("bob")
    made = bench.challenges.challenge(mine, other, 4)
    assert [[seat.submission_id for seat in match.seats] for match in made] == [[mine, other], [other, mine]] * 2
    assert {match.kind for match in made} == {MatchKind.CHALLENGE}
    assert not any(match.rated for match in made)
    assert len({match.seed for match in made}) == 4
    assert [match.pairing for match in made] == [0, 1, 0, 1]
    for match in made:
        bench.end(match)
    Fold(bench.store, GAME, bench.season.id).advance()
    assert bench.store.ratings.latest(GAME) == {}


def test_an_owner_has_only_so_many_open_and_others_can_still_challenge(bench):
    mine, second, other = bench.enter("ann", "a"), bench.enter("ann", "b"), bench.enter("bob")
    made = [match for _ in range(MAX_OPEN // MAX_GAMES) for match in bench.challenges.challenge(mine, other, MAX_GAMES)]
    for agent in (mine, second):
        with pytest.raises(QuotaExceeded):
            bench.challenges.challenge(agent, other)
    assert len(bench.store.matches.open()) == MAX_OPEN
    bench.end(made[0])
    bench.challenges.challenge(second, other)


def test_being_challenged_does_not_use_up_the_quota_of_the_challenged(bench):
    mine, other = bench.enter("ann"), bench.enter("bob")
    for _ in range(2):
        bench.challenges.challenge(mine, other, MAX_GAMES)
    assert len(bench.challenges.challenge(other, mine, MAX_GAMES)) == MAX_GAMES


def test_only_agents_on_the_ladder_of_one_game_meet(bench):
    mine, other = bench.enter("ann"), bench.enter("bob")
    gone = bench.enter("cyd")
    bench.store.submissions.delete(gone)
    bench.store.environments.put("CartPole-v1", EnvironmentKind.VERIFIED)
    alone = bench.store.submissions.add("dan", "CartPole-v1", algorithm="A", digest="0" * 64, main_file="agent.py").id
    waiting = bench.store.submissions.add("eve", GAME, algorithm="A", digest="0" * 64, main_file="agent.py").id
    for games in (0, -1, MAX_GAMES + 1):
        with pytest.raises(SpecError):
            bench.challenges.challenge(mine, other, games)
    for opponent in (gone, alone, waiting):
        with pytest.raises(SpecError):
            bench.challenges.challenge(mine, opponent)
    with pytest.raises(NotFound):
        bench.challenges.challenge(mine, "nobody")
    assert bench.store.matches.open() == []
