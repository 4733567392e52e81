"""Whose match is played next: shares of owners, priorities within one owner, and cancelled matches."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from harena.match.executor.turns import Turns


class Crowd:
    """Matches that wait for one place and note when they get it."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []
        self.threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def add(self, name: str, owner: str, priority: int = 0) -> None:
        before = self.turns.waiting

        def play() -> None:
            with self.turns.turn(owner, priority, lambda: False) as playing:
                assert playing
                with self._lock:
                    self.order.append(name)

        self.threads.append(threading.Thread(target=play))
        self.threads[-1].start()
        while self.turns.waiting == before:
            threading.Event().wait(0.002)

    def join(self) -> list[str]:
        for thread in self.threads:
            thread.join(60)
        return self.order


def test_owners_take_turns_however_many_matches_one_of_them_asks_for() -> None:
    turns = Turns(1)
    crowd = Crowd(turns)
    with turns.turn("ann", 0, lambda: False):
        for at in range(4):
            crowd.add(f"ann {at}", "ann", priority=100)
        crowd.add("bob 0", "bob")
        crowd.add("bob 1", "bob")
        crowd.add("cid 0", "cid", priority=-100)
    assert crowd.join() == ["bob 0", "cid 0", "ann 0", "bob 1", "ann 1", "ann 2", "ann 3"]


def test_a_priority_orders_the_matches_of_its_owner() -> None:
    turns = Turns(1)
    crowd = Crowd(turns)
    with turns.turn("ann", 0, lambda: False):
        for name, priority in {"low": -1, "first": 0, "second": 0, "high": 5}.items():
            crowd.add(name, "ann", priority)
    assert crowd.join() == ["high", "first", "second", "low"]


def test_a_match_that_is_cancelled_while_it_waits_gives_its_place_up() -> None:
    turns = Turns(1)
    with turns.turn("ann", 0, lambda: False):
        with turns.turn("bob", 0, lambda: True) as playing:
            assert not playing
        assert (turns.waiting, turns.playing) == (0, 1)
    assert turns.playing == 0
    with turns.turn("bob", 0, lambda: False) as playing:
        assert playing


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), max_size=12))
def test_never_more_than_the_limit_play_and_everybody_gets_a_turn(limit: int, matches: list[tuple[str, int]]) -> None:
    turns, lock = Turns(limit), threading.Lock()
    at_once, most, played = 0, 0, 0

    def play(owner: str, priority: int) -> None:
        nonlocal at_once, most, played
        with turns.turn(owner, priority, lambda: False) as playing:
            assert playing
            with lock:
                at_once += 1
                most = max(most, at_once)
            with lock:
                at_once -= 1
                played += 1

    threads = [threading.Thread(target=play, args=match) for match in matches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert played == len(matches)
    assert most <= limit
    assert (turns.waiting, turns.playing) == (0, 0)
