"""The rules of the built-in games."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from harena.match import registry
from harena.match.check import check_game
from harena.match.game import IllegalAction
from harena.match.games.connect_four import ConnectFour
from harena.match.games.leduc import CALL, FOLD, NONE, RAISE, Leduc
from harena.match.games.pong import DOWN, STAY, UP, Pong
from harena.match.games.rps import RockPaperScissors
from harena.match.games.tictactoe import TicTacToe
from harena.match.games.tron import Tron

CONFIGS = [
    *((name, {}) for name in registry.BUILT_IN),
    ("tron", {"seats": 2, "size": 6}),
    ("tron", {"seats": 3}),
    ("rps", {"rounds": 1}),
    ("leduc", {"hands": 1}),
]


@pytest.mark.parametrize(("name", "config"), CONFIGS, ids=str)
def test_every_built_in_game_keeps_the_contract(name, config):
    assert check_game(lambda: registry.make(name, config), games=6) == []


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_built_in_game_draws_itself_for_a_terminal(name):
    game = registry.make(name)
    lines = game.text().split("\n")
    assert 1 < len(lines) <= 40
    assert max(map(len, lines)) <= 80


def play(game, actions):
    """Turn by turn; the rewards of the last step."""
    rewards = {}
    for action in actions:
        rewards = game.step({game.to_move()[0]: action})
    return rewards


# --- tic-tac-toe


def test_tictactoe_is_won_by_three_in_a_row():
    game = TicTacToe()
    assert play(game, [0, 3, 1, 4, 2]) == {0: 1.0, 1: -1.0}
    assert game.to_move() == ()
    assert game.outcome().winner == 0
    assert game.view()["line"] == [0, 1, 2]


def test_tictactoe_shows_each_seat_its_own_view():
    game = TicTacToe()
    play(game, [4, 0])
    space = game.observation_space(0)
    assert space.decode_all(game.observe(0)).tolist() == [-1, 0, 0, 0, 1, 0, 0, 0, 0]
    assert space.decode_all(game.observe(1)).tolist() == [1, 0, 0, 0, -1, 0, 0, 0, 0]


def test_tictactoe_ends_in_a_draw_when_the_board_is_full():
    game = TicTacToe()
    play(game, [0, 1, 2, 4, 3, 5, 7, 6, 8])
    assert game.to_move() == ()
    assert game.outcome().winner is None


def test_a_taken_cell_is_illegal_and_changes_nothing():
    game = TicTacToe()
    play(game, [4])
    before = game.view()
    with pytest.raises(IllegalAction, match="cell 4 is taken") as caught:
        game.step({1: 4})
    assert caught.value.seat == 1
    assert game.view() == before


# --- connect four


def four_in_a_row(cells, player):
    """As slow and plain as can be."""
    for row in range(6):
        for column in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(row + k * down, column + k * right) for k in range(4)]
                if all(0 <= r < 6 and 0 <= c < 7 and cells[r * 7 + c] == player for r, c in line):
                    return True
    return False


def test_connect_four_agrees_with_a_plain_search_for_lines():
    rng = random.Random(5)
    game = ConnectFour()
    ended = set()
    for _ in range(60):
        game.reset(0)
        while moving := game.to_move():
            open_columns = [column for column in range(7) if not game.view()["cells"][column]]
            game.step({moving[0]: rng.choice(open_columns)})
            cells = game.view()["cells"]
            winners = [seat for seat in (0, 1) if four_in_a_row(cells, seat + 1)]
            assert bool(winners) == (not game.to_move() and game.outcome().winner is not None)
            if winners:
                assert winners == [game.outcome().winner]
                assert all(cells[cell] == winners[0] + 1 for cell in game.view()["line"])
        ended.add(game.outcome().winner)
    assert {0, 1} <= ended


def test_connect_four_rows_come_from_the_top():
    game = ConnectFour()
    play(game, [3, 3])
    seen = game.observation_space(0).decode_all(game.observe(0)).tolist()
    assert seen[5 * 7 + 3] == 1
    assert seen[4 * 7 + 3] == -1
    assert game.view()["last"] == 4 * 7 + 3


def test_lines_do_not_wrap_from_one_column_to_the_next():
    game = ConnectFour()
    # seat 0 holds the three top cells of column 0 and the lowest of column 1
    play(game, [1, 0, 6, 0, 6, 0, 0, 6, 0, 5, 0])
    assert game.to_move() == (1,)


def test_a_full_column_is_illegal_and_changes_nothing():
    game = ConnectFour()
    play(game, [2] * 6)
    before = game.view()
    with pytest.raises(IllegalAction, match="column 2 is full"):
        game.step({0: 2})
    assert game.view() == before


def test_connect_four_draws_when_the_board_is_full():
    game = ConnectFour()
    columns = [
        0,
        1,
        0,
        1,
        1,
        0,
        1,
        0,
        0,
        1,
        0,
        1,
        2,
        3,
        2,
        3,
        3,
        2,
        3,
        2,
        2,
        3,
        2,
        3,
        4,
        5,
        4,
        5,
        5,
        4,
        5,
        4,
        4,
        5,
        4,
        5,
    ]
    play(game, [*columns, 6, 6, 6, 6, 6, 6])
    assert game.to_move() == ()
    assert game.outcome().scores == (0.0, 0.0)


# --- pong


def pong_step(game, one, two=STAY):
    return game.step({0: one, 1: two})


def numbers(game, seat=0):
    return struct.unpack("<8f", game.observe(seat))


def test_pong_observation_is_the_contract_s_eight_numbers():
    game = Pong()
    game.reset(1)
    x, y, vx, vy, one, two, score_one, score_two = numbers(game)
    view = game.view()
    assert (x, one, two, score_one, score_two) == (0.5, 0.5, 0.5, 0, 0)
    assert (y, vx, vy) == pytest.approx((view["ball"]["y"], view["ball"]["vx"], view["ball"]["vy"]), abs=1e-6)
    assert game.observation_space(0).describe()["dtype"] == "float32"
    assert game.observe(0) == game.observe(1)


def test_pong_up_is_towards_zero_and_paddles_stay_on_the_field():
    game = Pong()
    for _ in range(30):
        pong_step(game, UP, DOWN)
    assert numbers(game)[4] == pytest.approx(0.1)
    assert numbers(game)[5] == pytest.approx(0.9)
    pong_step(game, STAY, STAY)
    assert numbers(game)[4] == pytest.approx(0.1)


def tracker(game, seat):
    y, paddle = numbers(game)[1], numbers(game)[4 + seat]
    return UP if y < paddle - 0.02 else DOWN if y > paddle + 0.02 else STAY


def test_pong_is_won_with_eleven_points_and_each_point_is_one_reward():
    game = Pong()
    game.reset(2)
    totals = [0.0, 0.0]
    while game.to_move():
        rewards = game.step({0: tracker(game, 0), 1: UP})
        assert sum(rewards.values()) == 0
        for seat, reward in rewards.items():
            assert abs(reward) == 1
            totals[seat] += reward
    outcome = game.outcome()
    assert outcome.winner == 0
    assert outcome.scores[0] == 11
    assert outcome.reason == "11 points"
    assert totals[0] == outcome.scores[0] - outcome.scores[1] == -totals[1]
    assert numbers(game)[6:] == outcome.scores


def test_pong_ends_after_a_thousand_steps():
    game = Pong()
    game.reset(0)
    steps = 0
    while game.to_move():
        game.step({0: tracker(game, 0), 1: tracker(game, 1)})
        steps += 1
    assert steps == 1000
    assert game.outcome().reason == "1000 steps"


def test_pong_treats_both_sides_alike():
    """Random against random: neither side wins nearly always."""
    wins = [0, 0]
    for seed in range(40):
        game = Pong()
        game.reset(seed)
        rng = random.Random(seed)
        while game.to_move():
            game.step({0: rng.randrange(3), 1: rng.randrange(3)})
        for seat in (0, 1):
            wins[seat] += game.outcome().winner == seat
    assert min(wins) >= 10


def test_pong_is_the_same_on_every_machine():
    """A change of this hash is a change of the rules: it needs a new version of the game."""
    game = Pong()
    digest = hashlib.sha256()
    for seed in (0, 1, 2**63 + 5):
        game.reset(seed)
        actions = random.Random(seed)
        while game.to_move():
            digest.update(game.observe(0))
            game.step({0: int(actions.random() * 3), 1: tracker(game, 1)})
    assert digest.hexdigest()[:16] == "984f247bc79f1cc6"


# --- rock, paper, scissors


def test_rps_is_scored_by_its_rule():
    game = RockPaperScissors(rounds=9)
    results = {}
    for one in range(3):
        for two in range(3):
            results[one, two] = game.step({0: one, 1: two}).get(0, 0)
    assert [results[k] for k in ((1, 0), (2, 1), (0, 2))] == [1, 1, 1]
    assert [results[k] for k in ((0, 1), (1, 2), (2, 0))] == [-1, -1, -1]
    assert [results[k] for k in ((0, 0), (1, 1), (2, 2))] == [0, 0, 0]
    assert game.to_move() == ()
    assert game.outcome().scores == (3.0, 3.0)
    assert game.outcome().winner is None


def test_rps_shows_the_last_round_from_each_side():
    game = RockPaperScissors()
    assert game.observe(0) == {"round": 0, "mine": 3, "theirs": 3}
    game.step({0: 2, 1: 0})
    assert game.observe(0) == {"round": 1, "mine": 2, "theirs": 0}
    assert game.observe(1) == {"round": 1, "mine": 0, "theirs": 2}


# --- tron


def test_tron_starts_are_turned_copies_of_each_other():
    for seed in range(20):
        game = Tron()
        game.reset(seed)
        heads = {tuple(head) for head in game.view()["heads"]}
        assert len(heads) == 4
        assert {(15 - y, x) for x, y in heads} == heads


def test_tron_for_two_starts_on_opposite_sides():
    for seed in range(20):
        game = Tron(seats=2)
        game.reset(seed)
        (ax, ay), (bx, by) = game.view()["heads"]
        assert (ax + bx, ay + by) == (15, 15)


def set_heads(game, *heads):
    game._grids = [bytearray(game._size**2) for _ in range(game.seats)]
    game._heads = list(heads)
    for seat in range(game.seats):
        game._build(seat)


def test_two_heads_on_one_cell_crash_both():
    game = Tron(seats=2)
    set_heads(game, (4, 4), (6, 4))
    assert game.step({0: 1, 1: 3}) == {}
    assert game.to_move() == ()
    assert game.outcome().winner is None


def test_walls_edges_and_turning_back_crash_and_the_last_one_riding_wins():
    game = Tron(seats=4)
    set_heads(game, (8, 8), (0, 3), (3, 0), (12, 12))
    game.step({0: 0, 1: 1, 2: 2, 3: 0})
    assert game.step({0: 0, 1: 1, 2: 0, 3: 2}) == {0: 2.0, 1: 2.0}  # 2 turned back, so did 3
    assert list(game.to_move()) == [0, 1]
    assert game.step({0: 0, 1: 3}) == {0: 1.0}
    assert game.outcome().winner == 0
    assert game.outcome().scores == (3.0, 2.0, 0.0, 0.0)


def test_tron_shows_each_seat_its_own_wall_as_one():
    game = Tron(seats=3)
    for seat in range(3):
        seen = game.observation_space(seat).decode_all(game.observation_space(seat).encode(game.observe(seat)))
        for k, (x, y) in enumerate(seen["heads"].tolist()):
            assert seen["grid"][y][x] == k + 1
            assert [x, y] == game.view()["heads"][(seat + k) % 3]


# --- leduc


def deal(game, one, two, board):
    game._cards, game._next_board = [one, two], board


def test_leduc_checks_through_to_the_showdown():
    game = Leduc(hands=2)
    deal(game, 2, 0, 1)
    assert play(game, [CALL, CALL, CALL, CALL]) == {0: 1.0, 1: -1.0}
    assert game.observe(1)["last_shown"] == 2


def test_a_pair_with_the_board_beats_a_higher_card():
    game = Leduc(hands=1)
    deal(game, 2, 0, 0)
    assert play(game, [RAISE, CALL, RAISE, CALL]) == {0: -7.0, 1: 7.0}
    assert game.outcome().winner == 1


def test_equal_cards_split_the_pot():
    game = Leduc(hands=1)
    deal(game, 1, 1, 0)
    assert play(game, [RAISE, RAISE, CALL, CALL, CALL]) == {0: 0.0, 1: 0.0}


def test_a_fold_loses_what_was_paid_and_shows_no_card():
    game = Leduc(hands=2)
    assert play(game, [RAISE, FOLD]) == {0: 1.0, 1: -1.0}
    assert game.observe(0)["last_shown"] == NONE
    assert game.to_move() == (1,), "the seats take turns at speaking first"


def test_a_third_raise_is_a_call_and_a_fold_for_nothing_a_check():
    game = Leduc(hands=1)
    play(game, [FOLD, RAISE, RAISE, RAISE])
    assert game.view()["round"] == 1
    assert game.view()["bets"] == [5, 5]
    assert game.view()["history"][0] == ["call", "raise", "raise", "call"]


def test_leduc_shows_nothing_of_the_other_s_card_or_of_cards_to_come():
    rng = random.Random(3)
    game = Leduc(hands=30)
    game.reset(9)
    while game.to_move():
        for seat in (0, 1):
            seen = game.observe(seat)
            theirs, coming = game._cards[1 - seat], game._next_board
            for card in range(3):
                game._cards[1 - seat] = card
                if game._board == NONE:
                    game._next_board = card
                assert game.observe(seat) == seen
            game._cards[1 - seat], game._next_board = theirs, coming
        game.step({game.to_move()[0]: rng.randrange(3)})
    assert game.hidden
