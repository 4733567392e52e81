from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from harena.errors import BoxError
from harena.match import registry
from harena.match.agent import load as agents
from harena.match.agent.validate import AgentValidation, in_words, validate
from harena.match.result import Clock, MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
AGENT = b"def act(observation): return 3\n"
QUICK = Clock(start_s=5, move_s=0.5, match_s=20)


class Play:
    """Answers as a match would, and keeps what it was asked."""

    def __init__(self, *seats: dict[str, object], status: MatchStatus = MatchStatus.FINISHED, error: str = "") -> None:
        self.seats, self.status, self.error = seats, status, error
        self.asked: list[MatchSpec] = []

    def __call__(self, spec: MatchSpec) -> MatchResult:
        self.asked.append(spec)
        fine = {
            "agent": "a",
            "status": SeatStatus.OK,
            "reason": "",
            "score": 0.0,
            "cpu_s": 0.1,
            "moves": 9,
            "start_s": 0.1,
            "log": "",
        }
        seats = tuple(SeatResult(**(fine | seat)) for seat in self.seats)
        return MatchResult(
            match_id="",
            environment=spec.environment,
            seed=spec.seed,
            status=self.status,
            winner=None,
            reason="",
            steps=9,
            wall_s=1.0,
            seats=seats,
            error=self.error,
        )


def refused(play: Play, environment: str = "connect_four") -> str:
    answer = validate(AGENT, environment, play=play)
    assert not answer.valid
    assert len(answer.errors) == 1
    return answer.errors[0]


# How a seat's fate is told


def test_it_plays_against_itself_in_every_seat() -> None:
    play = Play({}, {}, {}, {})
    assert validate(AGENT, "tron", play=play, seed=5) == AgentValidation(True)
    (spec,) = play.asked
    assert (len(spec.agents), spec.seed, spec.record) == (4, 5, False)
    assert {code.files["agent.py"] for code in spec.agents} == {AGENT}


def test_what_cannot_be_read_or_parsed_is_not_played() -> None:
    play = Play()
    assert "empty" in validate(b"", "pong", play=play).errors[0]
    assert "line 1" in validate(b"def act(:", "pong", play=play).errors[0]
    assert "no agent in it" in validate(b"x = 1", "pong", play=play).errors[0]
    assert not play.asked


def test_an_unknown_game_is_not_the_agents_fault() -> None:
    with pytest.raises(registry.UnknownGame):
        validate(AGENT, "no_such_game", play=Play())


def test_a_void_match_is_not_the_agents_fault() -> None:
    with pytest.raises(BoxError, match="could not be played: the box was lost"):
        validate(AGENT, "pong", play=Play(status=MatchStatus.VOID, error="the box was lost"))


def test_an_illegal_action_is_told_with_what_is_allowed() -> None:
    text = refused(Play({"status": SeatStatus.ILLEGAL, "reason": "7 is out of range"}, {}))
    assert "7 is out of range" in text
    assert "connect_four-v1" in text
    assert "a whole number from 0 to 6" in text


@pytest.mark.parametrize(
    ("seat", "words"),
    [
        ({"status": SeatStatus.LOAD, "reason": "NameError: x"}, ("could not be loaded", "NameError: x")),
        ({"status": SeatStatus.TIMEOUT, "reason": "start", "moves": 0}, ("too long", "30 s to start", "5 s a move")),
        ({"status": SeatStatus.TIMEOUT, "reason": "a move", "moves": 3}, ("too long in its move 4", "5 s")),
        (
            {"status": SeatStatus.CRASH, "reason": "KeyError: 1", "log": "Traceback\n  line 3"},
            ("in its move 10", "KeyError: 1", "It printed:\n  Traceback\n    line 3"),
        ),
        ({"status": SeatStatus.MEMORY, "reason": "full"}, ("512 MB",)),
        ({"status": SeatStatus.OUTPUT, "reason": "flood"}, ("8 MB", "Print less")),
        ({"status": SeatStatus.PROTOCOL, "reason": "a line that is not JSON"}, ("docs/agents.md", "not JSON")),
    ],
)
def test_each_status_is_told_in_words(seat: dict[str, object], words: tuple[str, ...]) -> None:
    text = refused(Play(seat, {}))
    for word in words:
        assert word in text


def test_only_the_end_of_a_log_is_shown_and_steers_no_terminal() -> None:
    log = "early\n" * 1000 + "\x1b[2Jthe end"
    text = refused(Play({"status": SeatStatus.CRASH, "reason": "x", "log": log}, {}))
    assert text.endswith("[2Jthe end")
    assert "\x1b" not in text
    assert len(text) < 1000


def test_the_same_fault_in_two_seats_is_told_once() -> None:
    seat = {"status": SeatStatus.LOAD, "reason": "NameError: x"}
    assert "NameError" in refused(Play({**seat, "log": "in seat 0"}, {**seat, "log": "in seat 1"}))


def test_slowness_and_a_long_game_are_warnings() -> None:
    answer = validate(AGENT, "pong", play=Play({"cpu_s": 30.0, "moves": 10, "start_s": 20.0}, {}))
    assert answer.valid
    assert "20.0 s to start" in answer.warnings[0]
    assert "3.0 s on average" in answer.warnings[1]
    answer = validate(AGENT, "pong", play=Play({}, {}, status=MatchStatus.TIMEOUT))
    assert answer.valid
    assert "stopped after 60 s" in answer.warnings[0]


def test_spaces_are_told_in_words() -> None:
    box = {"kind": "box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0}
    assert in_words({"kind": "tuple", "spaces": [box, {"kind": "text", "max_length": 5, "min_length": 0}]}) == (
        "a tuple of an array of shape (2,) of numbers from -1.0 to 1.0, a text of at most 5 characters"
    )
    assert in_words({"kind": "multi_discrete", "nvec": [3, 2]}) == "2 whole numbers, from 0 to 2, 1 each"


# In real boxes


@pytest.mark.parametrize(
    ("path", "environment"),
    [
        ("pong/random.py", "pong"),
        ("pong/tracker.py", "pong"),
        ("pong/trained", "pong"),
        ("connect_four/random.py", "connect_four"),
        ("connect_four/one_ply.py", "connect_four"),
        ("connect_four/alpha_beta.py", "connect_four"),
        ("cartpole/balance.py", "CartPole-v1"),
        ("leduc/cautious.py", "leduc"),
        ("multi_file", "tictactoe"),
        ("other_language/perl", "connect_four"),
        ("other_language/sh", "rps"),
    ],
)
def test_every_example_is_valid(path: str, environment: str) -> None:
    assert validate(EXAMPLES / path, environment) == AgentValidation(True)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"def act(observation): return 7", ("7 is out of range", "expected one from 0 to 6")),
        (b"def act(observation): return observation.nothing", ("AttributeError", "It printed:")),
        (b"import nothing_like_it\ndef act(o): return 1", ("could not be loaded", "nothing_like_it")),
        (b"class Agent:\n def __init__(self, x): pass\n def act(self, o): return 1", ("could not be loaded", "'x'")),
        (b"def act(observation):\n while True: pass", ("too long", "0.5 s")),
    ],
)
def test_a_real_game_finds_what_reading_cannot(source: bytes, words: tuple[str, ...]) -> None:
    answer = validate(source, "connect_four", clock=QUICK)
    assert not answer.valid
    for word in words:
        assert word in answer.errors[0]


# The examples themselves


def test_the_trained_agent_beats_the_others_at_pong() -> None:
    trained, tracker, chance = (
        load_example(f"pong/{name}") for name in ("trained/agent.py", "tracker.py", "random.py")
    )
    assert points_ahead(trained, chance) > 8
    assert points_ahead(trained, tracker) > 1


def load_example(path: str) -> dict[str, object]:
    names: dict[str, object] = {"__file__": str(EXAMPLES / path), "__name__": "example"}
    exec(compile((EXAMPLES / path).read_text(), path, "exec"), names)
    return names


def points_ahead(one: dict, other: dict) -> float:
    ahead = 0.0
    for seed in range(4):
        game, seat = registry.make("pong"), seed % 2
        acts = {
            player: maker["Agent"](player).act if "Agent" in maker else maker["act"]
            for player, maker in ((seat, one), (1 - seat, other))
        }
        game.reset(77 + seed // 2)
        while game.to_move():
            seen = game.observation_space(0).decode_all(game.observe(0))
            game.step({player: act(seen) for player, act in acts.items()})
        scores = game.outcome().scores
        ahead += (scores[seat] - scores[1 - seat]) / 4
    return ahead


def test_every_misbehaving_agent_says_what_to_expect_of_it() -> None:
    folder = EXAMPLES / "misbehaving"
    expected = tomllib.loads((folder / "expect.toml").read_text())
    named = {case["file"] for case in expected.values()}
    assert named == {path.name for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()} - {"__pycache__"}
    for name, case in expected.items():
        assert set(case) == {"file", "environment", "statuses", "why"}, name
        assert {SeatStatus(status) for status in case["statuses"]}
        agents.load(folder / case["file"])
