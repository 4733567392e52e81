"""Everybody plays, the unknown first, against somebody near; nobody meets itself."""

from __future__ import annotations

import math
import random
from collections import Counter, deque

import pytest

from harena.arena.ladder import ratings
from harena.arena.ladder.pairing import Candidate, LadderPairing, PairingRules, Reason, bench_rule, choose
from harena.arena.ladder.ratings import Rating
from harena.errors import SpecError
from harena.match.result import SeatStatus

OK, CRASH, TIMEOUT = SeatStatus.OK, SeatStatus.CRASH, SeatStatus.TIMEOUT


def candidate(
    agent: str, mu: float = 25.0, sigma: float = 2.0, games: int = 50, since: float = 0.0, **more: object
) -> Candidate:
    return Candidate(agent=agent, rating=Rating(mu=mu, sigma=sigma, games=games), waiting_since=since, **more)  # type: ignore[arg-type]


def field(n: int, **more: float) -> list[Candidate]:
    return [candidate(f"a{k:02}", mu=float(k), **more) for k in range(n)]


def pick(
    candidates: list[Candidate], recent=(), running=(), *, seed: int = 0, now: float = 0.0, **rules: object
) -> LadderPairing | None:
    return choose(candidates, list(recent), running, rng=random.Random(seed), now=now, rules=PairingRules(**rules))  # type: ignore[arg-type]


def test_the_same_arguments_give_the_same_match_in_whatever_order_they_come() -> None:
    agents = field(20)
    assert pick(agents, seed=3) == pick(agents[::-1], seed=3)


def test_the_least_sure_agent_is_served_first() -> None:
    match = pick([*field(10), candidate("unsure", sigma=6)])
    assert match is not None
    assert (match.sought, match.reason) == ("unsure", Reason.UNCERTAIN)
    assert "unsure" in match.agents


def test_provisional_agents_come_before_unsure_ones_the_fewest_games_first() -> None:
    match = pick([*field(10), candidate("unsure", sigma=8), candidate("five", games=5), candidate("two", games=2)])
    assert match is not None
    assert (match.sought, match.reason) == ("two", Reason.PROVISIONAL)


def test_of_equally_new_agents_the_one_that_waits_longest_is_served() -> None:
    match = pick([candidate("late", games=0, since=9), candidate("early", games=0, since=1), *field(4)], now=10)
    assert match is not None
    assert match.sought == "early"


def test_an_agent_passed_over_for_too_long_comes_before_everybody() -> None:
    agents = [*field(4), candidate("old", sigma=0.5), candidate("new", games=0)]
    recent = [("old", "a00")] + [("a00", "new"), ("a01", "a02"), ("a03", "new")] * 3
    match = pick(agents, recent)
    assert match is not None
    assert (match.sought, match.reason) == ("old", Reason.WAITING)
    assert pick(agents, recent[:8]).reason is Reason.PROVISIONAL  # type: ignore[union-attr]


def test_time_makes_an_agent_wait_too_long_as_well() -> None:
    match = pick([*field(4, since=5000.0), candidate("old", sigma=0.5, since=1000.0)], now=5001.0)
    assert match is not None
    assert (match.sought, match.reason) == ("old", Reason.WAITING)


@pytest.mark.parametrize("seats", [2, 4])
def test_nobody_starves_while_new_agents_keep_coming(seats: int) -> None:
    rng, rules, agents = random.Random(5), PairingRules(seats=seats), field(12)
    last = {one.agent: 0 for one in agents}
    recent: list[tuple[str, ...]] = []
    for number in range(300):
        newcomers = [candidate(f"new{number}-{k}", mu=6.0, games=0, since=float(number)) for k in range(4)]
        now = [candidate(one.agent, mu=one.rating.mu, since=float(last[one.agent])) for one in agents] + newcomers
        match = choose(now, recent[-rules.patience(16) :], (), rng=rng, now=number, rules=rules)
        assert match is not None
        recent.append(match.agents)
        last.update({agent: number for agent in match.agents if agent in last})
        assert number - min(last.values()) <= rules.patience(16) + 16


def test_opponents_are_mostly_near_and_sometimes_anybody() -> None:
    agents = [*field(40), candidate("x", mu=19.5, sigma=9)]
    places = {one.agent: one.rating.mu for one in agents}
    distances = []
    for seed in range(600):
        match = pick(agents, seed=seed)
        assert match is not None
        distances += [abs(places[agent] - 19.5) for agent in match.agents if agent != "x"]
    assert sorted(distances)[300] < 6
    assert max(distances) > 17


def test_seats_are_drawn() -> None:
    first = Counter(pick([candidate("a"), candidate("b")], seed=seed).agents[0] for seed in range(200))  # type: ignore[union-attr]
    assert min(first.values()) > 70


def test_nobody_meets_itself_or_another_version_of_itself() -> None:
    agents = [candidate(f"v{k}", lineage="me", games=0) for k in range(5)] + [candidate("you"), candidate("she")]
    for seed in range(50):
        match = pick(agents, seed=seed, seats=3)
        assert match is not None
        assert set(match.agents) > {"you", "she"}
    assert pick(agents[:5]) is None
    assert pick(agents[:5], versions_meet=True) is not None


def test_agents_of_one_owner_meet_only_where_the_rules_allow_it() -> None:
    agents = [candidate("a", owner="ada"), candidate("b", owner="ada"), candidate("c", owner="cyd")]
    for seed in range(20):
        match = pick(agents, seed=seed)
        assert match is not None
        assert "c" in match.agents
    assert pick(agents[:2], owners_meet=True) is not None
    assert pick(agents[:2]) is None


def test_two_who_have_just_met_do_not_meet_again_while_there_is_somebody_else() -> None:
    agents = [candidate("a", sigma=9), candidate("b"), candidate("c", mu=90.0)]
    for seed in range(50):
        match = pick(agents, [("a", "b"), ("c", "d")], seed=seed, window=1, tail=0)
        assert match is not None
        assert set(match.agents) == {"a", "c"}
    assert pick(agents[:2], [("a", "b")]) is not None


def test_benched_and_busy_agents_are_left_out() -> None:
    agents = [candidate("bad", games=0, benched=True), candidate("busy", games=0), *field(3)]
    for seed in range(20):
        match = pick(agents, (), [("busy", "other")], seed=seed)
        assert match is not None
        assert not {"bad", "busy"} & set(match.agents)
    match = pick(agents, (), [("busy", "other")], at_once=2)
    assert match is not None
    assert match.sought == "busy"


def test_no_match_when_the_table_cannot_be_filled() -> None:
    assert pick([]) is None
    assert pick([candidate("a")]) is None
    assert pick(field(3), seats=4) is None
    assert pick(field(2), (), [("a00", "a01")]) is None


@pytest.mark.parametrize(
    "rule", [{"seats": 1}, {"window": 0.5}, {"tail": -1}, {"at_once": 0}, {"patience_s": 0}, {"window": math.nan}]
)
def test_rules_without_sense_are_refused(rule: dict[str, float]) -> None:
    with pytest.raises(SpecError):
        PairingRules(**rule)  # type: ignore[arg-type]


def test_a_ladder_finds_the_order_of_its_agents() -> None:
    rng = random.Random(11)
    truth = {f"a{k:02}": rng.gauss(0, 1) for k in range(40)}
    ladder, recent, running = ratings.RatingLadder(), list[tuple[str, ...]](), deque[tuple[int, tuple[str, ...]]]()
    last = dict.fromkeys(truth, 0.0)
    for number in range(800):
        agents = [Candidate(agent=agent, rating=ladder.rating(agent), waiting_since=last[agent]) for agent in truth]
        match = choose(agents, recent[-60:], [table for _, table in running], rng=rng, now=number)
        assert match is not None
        recent.append(match.agents)
        last.update(dict.fromkeys(match.agents, float(number)))
        running.append((number, match.agents))
        if len(running) == 3:
            done, table = running.popleft()
            scores = [truth[agent] - math.log(rng.expovariate(1)) for agent in table]
            ladder.apply(ratings.RatedOutcome(number=done, agents=table, ranks=ratings.ranks_of(scores)))
    board = ratings.refit(ladder.log)
    order = [truth[entry.agent] for entry in board.entries]
    agreed = sum(1 if above > below else -1 for k, above in enumerate(order) for below in order[k + 1 :])
    assert agreed / math.comb(40, 2) > 0.7
    assert len(board.components) == 1
    assert min(entry.games for entry in board.entries) >= 30


# ---- the bench ----


def test_an_agent_that_forfeits_half_of_its_matches_is_benched_with_the_reason() -> None:
    reason = bench_rule([OK, CRASH] * 4 + [TIMEOUT, OK])
    assert reason is not None
    assert reason.startswith("5 of its last 10 matches were forfeited by its own fault (4 crash, 1 timeout)")


def test_an_agent_that_never_loads_is_benched_after_five_matches() -> None:
    assert bench_rule([SeatStatus.LOAD] * 4) is None
    assert "5 of its last 5" in (bench_rule([SeatStatus.LOAD] * 5) or "")


def test_old_faults_are_forgotten() -> None:
    assert bench_rule([CRASH] * 20 + [OK] * 6) is None
    assert bench_rule([]) is None


def test_a_match_is_made_only_for_those_who_need_one() -> None:
    """Two that have played enough do not play each other while the third is busy; they do play the third."""
    agents = [candidate("a"), candidate("b"), candidate("c", games=3)]
    rng = random.Random(0)
    assert choose(agents, [], [("c", "x")], rng=rng, now=0.0, needy={"c"}) is None
    found = choose(agents, [], [], rng=rng, now=0.0, needy={"c"})
    assert found is not None
    assert found.sought == "c"
    assert "c" in found.agents
