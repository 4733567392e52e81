"""Every misbehaving agent ends in its named status, and whoever sat opposite wins. The agents are data: see
examples/agents/misbehaving/expect.toml."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena.match.agent import load as agents
from harena.match.replay.replay import Replay
from harena.match.result import Clock, MatchSpec, MatchStatus, SeatStatus
from harena.match.run.play import Rack, play

FOLDER = Path(__file__).parents[2] / "examples" / "agents"
CASES = tomllib.loads((FOLDER / "misbehaving" / "expect.toml").read_text())
CLOCK = Clock(start_s=4, move_s=0.5, match_s=60)


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    with Rack() as rack:
        yield rack


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_misbehaving_agent_ends_as_expected_and_hurts_nobody(rack: Rack, name: str, seat: int) -> None:
    case = CASES[name]
    culprit = agents.load(FOLDER / "misbehaving" / case["file"])
    honest = agents.load(FOLDER / "connect_four" / "one_ply.py")
    players = (culprit, honest) if seat == 0 else (honest, culprit)
    # To touch so much memory takes processor time, on a busy machine more than a move has.
    clock = dataclasses.replace(CLOCK, move_s=10) if case["statuses"] == ["memory"] else CLOCK
    spec = MatchSpec(
        environment=case["environment"], agents=players, seed=7, clock=clock, memory_mb=256, output_bytes=1 << 20
    )
    result = play(spec, rack=rack)
    ended = result.seats[seat]
    assert result.status is MatchStatus.FINISHED, result
    assert ended.status.value in case["statuses"], (case["why"], ended)
    assert result.seats[1 - seat].status is SeatStatus.OK, result.seats[1 - seat]
    assert result.seats[1 - seat].reason == ""
    if ended.status is not SeatStatus.OK:
        assert result.winner == 1 - seat
        assert ended.reason, "its owner is told why"
        assert result.scores[1 - seat] > result.scores[seat]
    assert Replay.load(result.replay).verify().ok


def test_two_agents_that_both_crash_make_no_winner(rack: Rack) -> None:
    broken = agents.load(b"def act(observation):\n    raise ValueError('no')\n", name="broken")
    result = play(MatchSpec(environment="pong", agents=(broken, broken)), rack=rack)
    assert [seat.status for seat in result.seats] == [SeatStatus.CRASH] * 2
    assert result.winner is None
    assert result.status is MatchStatus.FINISHED
    assert "ValueError: no (agent.py, line 2)" in result.seats[0].reason


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("import random\ndef act(observation):\n    raise ValueError('no')\n", "ValueError: no (random.py, line 3)"),
        ("def act(observation)\n    return 1\n", "(random.py, line 1)"),
    ],
)
def test_errors_name_the_file_as_its_author_did(source: str, place: str, rack: Rack, tmp_path: Path) -> None:
    """Also where the box could not have it under that name: the agent imports Python's own `random`."""
    path = tmp_path / "random.py"
    path.write_text(source)
    broken = agents.load(path)
    seat = play(MatchSpec(environment="pong", agents=(broken, broken)), rack=rack).seats[0]
    assert place in seat.reason
    assert 'random.py", line' in seat.log
    assert "agent.py" not in seat.log
    if "raise" in source:
        assert "raise ValueError('no')" in seat.log
    else:
        assert "random.py line 1: " in agents.inspect(broken).error


def test_helpers_of_the_same_name_stay_apart(rack: Rack) -> None:
    players = tuple(agents.load(FOLDER / "misbehaving" / f"import_collision_{one}") for one in "ab")
    for order in (players, players[::-1]):
        result = play(MatchSpec(environment="connect_four", agents=order), rack=rack)
        assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2, result.seats
