"""One match: agents of every form, clocks, logs, the same game from the same spec."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator

import pytest

from harena import SpecError
from harena.match import registry
from harena.match.agent import load as agents
from harena.match.replay.replay import Replay, ReplayError
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus
from harena.match.run.play import Rack, play

RANDOM = """
import random
class Agent:
    def __init__(self, player_id, seed):
        self.dice = random.Random(seed)
    def act(self, observation):
        return self.dice.choice([column for column in range(7) if observation[column] == 0])
"""
FIRST = "def act(observation):\n    return next(column for column in range(7) if observation[column] == 0)\n"
CLOCK = Clock(start_s=10, move_s=2, match_s=60)


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    with Rack() as rack:
        yield rack


def code(source: str, name: str = "agent", **files: bytes) -> AgentCode:
    return AgentCode(name=name, files={"agent.py": source.encode(), **files})


def connect_four(rack: Rack, one: str, two: str = RANDOM, **options: object) -> MatchResult:
    spec = MatchSpec(environment="connect_four", agents=(code(one, "one"), code(two, "two")), seed=3, clock=CLOCK)
    return play(dataclasses.replace(spec, **options), rack=rack)


def test_match_has_a_winner_scores_and_times(rack: Rack) -> None:
    result = connect_four(rack, FIRST)
    assert result.status is MatchStatus.FINISHED
    assert result.environment == "connect_four-v1"
    assert (result.winner, result.scores) == (0, (1.0, -1.0)), "one builds a column of four, two plays at random"
    assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2
    assert sum(seat.moves for seat in result.seats) == result.steps
    assert all(seat.cpu_s > 0 and seat.start_s > 0 for seat in result.seats)
    shown = json.loads(json.dumps(result.as_json()))
    assert {"environment", "seed", "winner", "scores", "steps", "seats"} <= set(shown)


@pytest.mark.parametrize(
    "source",
    [
        "class Agent:\n    def act(self, observation): return pick(observation)\n",
        "class Agent:\n    def __init__(self, player_id): assert player_id == 0\n    def get_action(self, o): return pick(o)\n",
        "class Agent:\n    def __init__(self, **options): assert sorted(options) == ['action_space', 'config', 'environment', 'observation_space', 'player_id', 'seats', 'seed']\n    def predict(self, o): return pick(o), None\n",
        "class Thing:\n    def act(self, o): return pick(o)\ndef create_agent(player_id=9): return Thing()\n",
        "def act(observation): return pick(observation)\n",
        "def agent(observation, config):\n    assert config == {}\n    return pick(observation)\n",
        "import numpy as np\ndef act(observation): return np.int64(pick(observation))\n",
        "def act(observation): return observation.__class__([pick(observation)]) if 0 else pick(observation)\n",
        "class Agent:\n    def __init__(self): self.ready = False\n    def reset(self): self.ready = True\n    def act(self, o):\n        assert self.ready\n        return pick(o)\n",
        "from helper import act\n",
    ],
)
def test_agent_may_be_written_in_any_of_the_agreed_ways(rack: Rack, source: str) -> None:
    pick = "def pick(o): return next(c for c in range(7) if o[c] == 0)\n"
    helper = (pick + "def act(observation): return pick(observation)\n").encode()
    one = AgentCode(name="one", files={"agent.py": (pick + source).encode(), "helper.py": helper})
    result = play(MatchSpec(environment="connect_four", agents=(one, code(RANDOM)), clock=CLOCK), rack=rack)
    assert result.seats[0].status is SeatStatus.OK, result.seats[0]


def test_files_beside_the_code_are_there(rack: Rack) -> None:
    source = "from pathlib import Path\nW = (Path(__file__).parent / 'data' / 'weights.bin').read_bytes()\n" + FIRST
    big = bytes(range(256)) * 8000  # more than one packet
    one = AgentCode(
        name="one", files={"agent.py": f"{source}\nassert len(W) == {len(big)}\n".encode(), "data/weights.bin": big}
    )
    result = play(MatchSpec(environment="connect_four", agents=(one, code(FIRST)), clock=CLOCK), rack=rack)
    assert result.seats[0].status is SeatStatus.OK, result.seats[0]


def test_same_spec_gives_the_same_replay(rack: Rack) -> None:
    for environment, one in (("connect_four", RANDOM), ("pong", "def act(o): return 0 if o[1] < o[4] else 2\n")):
        spec = MatchSpec(environment=environment, agents=(code(one), code(one)), seed=11, match_id="m", clock=CLOCK)
        first, second = (Replay.load(play(spec, rack=rack).replay) for _ in range(2))
        assert first.game_part() == second.game_part()
        assert first.verify().ok


def test_log_is_kept_with_head_and_tail(rack: Rack) -> None:
    talkative = (
        "print('the start')\n" + FIRST + "import atexit\nfor i in range(3000): print('line', i)\nprint('the end')\n"
    )
    result = connect_four(rack, talkative, log_bytes=2000)
    log = result.seats[0].log
    assert log.startswith("the start\n")
    assert log.endswith("the end\n")
    assert "bytes left out" in log
    assert len(log) < 2300
    assert result.seats[1].log == ""


def test_log_cannot_steer_a_terminal(rack: Rack) -> None:
    result = connect_four(rack, "print('\\x1b[2J\\x07red\\r')\n" + FIRST)
    assert "\x1b" not in result.seats[0].log
    assert "red" in result.seats[0].log


def test_start_up_has_a_time_of_its_own(rack: Rack) -> None:
    slow = "import time\ntime.sleep(0.6)\n" + FIRST
    assert connect_four(rack, slow, clock=Clock(start_s=10, move_s=0.1)).seats[0].status is SeatStatus.OK
    late = connect_four(rack, slow, clock=Clock(start_s=0.3, move_s=0.1)).seats[0]
    assert (late.status, late.reason) == (SeatStatus.TIMEOUT, "start-up took longer than 0.3 s")


def test_bank_pays_for_long_moves_until_it_is_empty(rack: Rack) -> None:
    thinks = "import time\ndef act(o):\n    end = time.process_time() + 0.05\n    while time.process_time() < end: pass\n    return next(c for c in range(7) if o[c] == 0)\n"
    rich = connect_four(rack, thinks, clock=Clock(move_s=0.01, bank_s=10))
    assert rich.seats[0].status is SeatStatus.OK, rich.seats[0]
    poor = connect_four(rack, thinks, clock=Clock(move_s=0.01, bank_s=0.09))
    assert poor.seats[0].status is SeatStatus.TIMEOUT
    assert poor.seats[0].moves == 2, "the bank paid for two"
    assert "bank" in poor.seats[0].reason


def test_thinking_in_a_child_process_is_charged(rack: Rack) -> None:
    source = (
        "import os, time\ndef act(o):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        end = time.process_time() + 0.1\n        while time.process_time() < end: pass\n        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n    return next(c for c in range(7) if o[c] == 0)\n"
    )
    seat = connect_four(rack, source, clock=Clock(move_s=1)).seats[0]
    assert seat.status is SeatStatus.OK, seat
    assert seat.cpu_s >= 0.09 * seat.moves, seat


def test_who_is_not_to_move_stands_still(rack: Rack) -> None:
    ponders = (
        "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n"
        + FIRST
    )
    waits = "import time\ndef act(o):\n    end = time.process_time() + 0.08\n    while time.process_time() < end: pass\n    return next(c for c in range(7) if o[c] == 0)\n"
    result = connect_four(rack, waits, ponders, clock=Clock(move_s=5))
    thinker, ponderer = result.seats
    assert thinker.status is SeatStatus.OK
    assert thinker.cpu_s == pytest.approx(0.08 * thinker.moves, rel=0.35)
    # Were it free to run, it would use as much as the other; it stands after a tick, and has only its own moves, in
    # which its thread holds it up for some milliseconds.
    assert ponderer.cpu_s < 0.6 * thinker.cpu_s, result.seats


def test_agents_cannot_leave_their_processor(rack: Rack) -> None:
    source = "import os\ntry:\n    os.sched_setaffinity(0, range(64))\n    print('moved')\nexcept PermissionError: print('denied')\nprint(len(os.sched_getaffinity(0)))\n"
    assert connect_four(rack, source + FIRST).seats[0].log == "denied\n1\n"


def test_wrong_number_of_agents_is_refused(rack: Rack) -> None:
    with pytest.raises(SpecError, match="2 seats; 1 agents"):
        play(MatchSpec(environment="pong", agents=(code(FIRST),)), rack=rack)


def test_unknown_game_is_refused(rack: Rack) -> None:
    with pytest.raises(registry.UnknownGame):
        play(MatchSpec(environment="chess-v99", agents=(code(FIRST),)), rack=rack)


SLOW = "import time\ndef act(o):\n    time.sleep(0.2)\n    return next(c for c in range(7) if o[c] == 0)\n"


def test_match_clock_ends_a_match_without_a_winner(rack: Rack) -> None:
    result = connect_four(rack, SLOW, clock=Clock(move_s=5, match_s=0.5), stalling_loses=False)
    assert (result.status, result.winner) == (MatchStatus.TIMEOUT, None)
    assert "0.5 s" in result.error


def test_nobody_is_blamed_when_both_were_slow(rack: Rack) -> None:
    result = connect_four(rack, SLOW, SLOW, clock=Clock(move_s=5, match_s=0.9))
    assert (result.status, result.winner) == (MatchStatus.TIMEOUT, None)


@pytest.mark.parametrize("stalls", [0, 1])
def test_who_stalls_until_the_match_clock_runs_out_loses(rack: Rack, stalls: int) -> None:
    """Each of its moves is in time, and it sleeps, so that no processor time is charged."""
    agents = [SLOW, FIRST] if stalls == 0 else [FIRST, SLOW]
    result = connect_four(rack, *agents, clock=Clock(move_s=5, match_s=0.5))
    assert (result.status, result.winner) == (MatchStatus.FINISHED, 1 - stalls)
    assert result.seats[stalls].status is SeatStatus.TIMEOUT
    assert "waiting for it" in result.seats[stalls].reason
    assert Replay.load(result.replay).verify().ok


@pytest.mark.parametrize("kind", ["python", "command"])
def test_a_late_answer_is_not_taken_for_the_next_games(rack: Rack, kind: str) -> None:
    """The match's time runs out while a seat thinks; its process stays for the series."""
    slow = (
        code(SLOW, "slow")
        if kind == "python"
        else command(LINE_AGENT.replace("        board", "        __import__('time').sleep(0.2)\n        board"))
    )
    spec = MatchSpec(
        environment="connect_four",
        agents=(slow, slow),
        clock=Clock(move_s=5, match_s=0.5),
        keep=True,
        stalling_loses=False,
    )
    results = [play(dataclasses.replace(spec, seed=seed), rack=rack) for seed in range(3)]
    assert [result.status for result in results] == [MatchStatus.TIMEOUT] * 3, results
    assert {seat.status for result in results for seat in result.seats} == {SeatStatus.OK}
    later = dataclasses.replace(spec, clock=CLOCK, agents=(slow, code(FIRST)))
    assert play(later, rack=rack).seats[0].status is SeatStatus.OK


def test_time_of_a_move_that_never_ends_is_charged(rack: Rack) -> None:
    loop = connect_four(rack, "def act(o):\n    while True: pass\n", clock=Clock(move_s=0.3)).seats[0]
    assert loop.status is SeatStatus.TIMEOUT
    assert loop.moves == 0
    assert 0.02 < loop.cpu_s < 0.45  # on a busy machine the wall clock ends the move first


def test_the_agents_own_line_is_in_its_error(rack: Rack) -> None:
    source = "import json\ndef act(o):\n    return json.loads('x')\n"
    seat = connect_four(rack, source).seats[0]
    assert "(agent.py, line 3; raised in decoder.py, line " in seat.reason


@pytest.mark.parametrize(
    ("hostile", "status"),
    [
        ("def act(o): return 1 / 0\n", SeatStatus.CRASH),
        ("1 / 0\n", SeatStatus.LOAD),
        ("def act(o): return 9\n", SeatStatus.ILLEGAL),
        ("def act(o):\n    while True: pass\n", SeatStatus.TIMEOUT),
    ],
)
def test_the_others_play_on_where_one_of_four_is_out(rack: Rack, hostile: str, status: SeatStatus) -> None:
    rider = "class Agent:\n    def __init__(self, player_id): self.way = 0\n    def act(self, o):\n        x, y = o['heads'][0]\n        for way, (dx, dy) in enumerate(((0, -1), (1, 0), (0, 1), (-1, 0))):\n            if 0 <= x + dx < 16 and 0 <= y + dy < 16 and o['grid'][y + dy][x + dx] == 0: return way\n        return 0\n"
    spec = MatchSpec(
        environment="tron",
        agents=tuple(code(one) for one in (rider, hostile, rider, rider)),
        seed=3,
        clock=Clock(move_s=0.5),
    )
    result = play(spec, rack=rack)
    assert (result.status, result.seats[1].status, result.seats[1].score) == (MatchStatus.FINISHED, status, -1)
    assert [seat.status for seat in result.seats].count(SeatStatus.OK) == 3
    assert result.steps > 20, "the other three went on"
    assert all(score > -1 for seat, score in enumerate(result.scores) if seat != 1)
    replay = Replay.load(result.replay)
    assert replay.verify().ok, replay.verify()
    assert Replay.load(json.dumps(replay.to_json()).encode()).verify().ok
    assert replay.withdrawn == ((0, (1,)),)


def test_a_seat_that_was_not_taken_out_cannot_be_written_into_a_replay(rack: Rack) -> None:
    rider = "def act(o): return 0\n"
    spec = MatchSpec(environment="tron", agents=tuple(code(one) for one in (rider, "1/0", rider, rider)), clock=CLOCK)
    document = Replay.load(play(spec, rack=rack).replay).to_json()
    document["metadata"]["withdrawn"] = [[0, [2]]]
    with pytest.raises(ReplayError):
        Replay.load(json.dumps(document).encode())
    document["metadata"]["withdrawn"] = []
    assert not Replay.load(json.dumps(document).encode()).verify().ok


def test_cancel_ends_a_match_while_an_agent_thinks(rack: Rack) -> None:
    stuck = "import time\ndef act(o): time.sleep(1000)\n"
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    started = time.monotonic()
    spec = MatchSpec(environment="connect_four", agents=(code(stuck), code(FIRST)), clock=Clock(move_s=50))
    result = play(spec, rack=rack, cancelled=stop.is_set)
    assert result.status is MatchStatus.CANCELLED
    assert time.monotonic() - started < 10


def test_events_tell_the_whole_game(rack: Rack) -> None:
    events: list[dict[str, object]] = []
    spec = MatchSpec(environment="connect_four", agents=(code(FIRST), code(RANDOM)), clock=CLOCK)
    result = play(spec, rack=rack, on_event=events.append)
    assert [event["type"] for event in events] == ["started", *["step"] * (result.steps + 1), "finished"]
    assert json.loads(json.dumps(events))[1]["view"]


def test_events_of_a_hidden_game_show_no_secret(rack: Rack) -> None:
    events: list[dict[str, object]] = []
    source = "import random\ndef act(o):\n    return 1\n"
    spec = MatchSpec(environment="leduc", agents=(code(source), code(source)), clock=CLOCK)
    play(spec, rack=rack, on_event=events.append)
    assert all("view" not in event and "text" not in event and "actions" not in event for event in events)


def test_game_that_fails_voids_the_match(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    game = registry.make("connect_four")
    steps = iter(range(3))
    real = type(game).step

    def broken(self: object, actions: object) -> object:
        next(steps)
        return real(self, actions)

    monkeypatch.setattr(type(game), "step", broken)
    result = connect_four(rack, FIRST)
    assert result.status is MatchStatus.VOID
    assert "StopIteration" in result.error
    assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2


def test_kept_agents_start_each_game_with_a_new_object(rack: Rack) -> None:
    source = "made = []\nclass Agent:\n    def __init__(self, player_id):\n        made.append(player_id)\n        print(made)\n    def act(self, o): return next(c for c in range(7) if o[c] == 0)\n"
    spec = MatchSpec(environment="connect_four", agents=(code(source), code(FIRST)), clock=CLOCK, keep=True)
    swapped = dataclasses.replace(spec, agents=spec.agents[::-1])
    assert play(spec, rack=rack).seats[0].log == "[0]\n"
    assert play(swapped, rack=rack).seats[1].log == "[0, 1]\n", "the module stays, and the seat is told"
    fresh = dataclasses.replace(spec, keep=False, agents=(code(source + "# other"), code(FIRST)))
    for _ in range(2):
        assert play(fresh, rack=rack).seats[0].log == "[0]\n", "without `keep` every game starts from nothing"


def test_files_of_one_match_are_not_there_in_the_next(rack: Rack) -> None:
    source = (
        "import os\nprint(sorted(os.listdir('/tmp')), os.path.exists('/workspace/agent/mine'))\nopen('/tmp/x', 'w'); open('mine', 'w')\n"
        + FIRST
    )
    for _ in range(3):
        assert connect_four(rack, source).seats[0].log == "[] False\n"


LINE_AGENT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "init": print(json.dumps({"ready": True}), flush=True)
    if message["type"] == "act":
        board = message["observation"]
        print(json.dumps({"action": next(c for c in range(7) if board[c] == 0)}), flush=True)
print("bye", file=sys.stderr)
"""


def command(source: str) -> AgentCode:
    return AgentCode(name="command", files={"run.py": source.encode()}, entry="", command=("python3", "run.py"))


def test_command_plays_by_lines_of_json(rack: Rack) -> None:
    result = play(
        MatchSpec(environment="connect_four", agents=(command(LINE_AGENT), code(RANDOM)), clock=CLOCK), rack=rack
    )
    assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2, result.seats
    assert result.seats[0].cpu_s > 0


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("print('hello', flush=True)\nimport time; time.sleep(100)", SeatStatus.PROTOCOL),
        ("print('{\"ready\": 1}', flush=True)\nimport time; time.sleep(100)", SeatStatus.PROTOCOL),
        ("print('[' * 100000, flush=True)\nimport time; time.sleep(100)", SeatStatus.PROTOCOL),
        ("while True: print('x' * 1000, end='')", SeatStatus.PROTOCOL),
        ("import sys; sys.exit(3)", SeatStatus.CRASH),
        ("import time; time.sleep(100)", SeatStatus.TIMEOUT),
        (LINE_AGENT.replace('{"action": ', '{"action": 99, "x": '), SeatStatus.PROTOCOL),
        (LINE_AGENT.replace("next(c for c in range(7) if board[c] == 0)", "99"), SeatStatus.ILLEGAL),
        (LINE_AGENT.replace("next(c for c in range(7) if board[c] == 0)", "True"), SeatStatus.ILLEGAL),
    ],
)
def test_command_that_misbehaves_gets_its_status(rack: Rack, source: str, status: SeatStatus) -> None:
    spec = MatchSpec(
        environment="connect_four", agents=(command(source), code(RANDOM)), clock=Clock(start_s=2, move_s=1)
    )
    result = play(spec, rack=rack)
    assert result.seats[0].status is status, result.seats[0]
    assert result.winner == 1


def test_command_that_does_not_exist_could_not_be_loaded(rack: Rack) -> None:
    missing = AgentCode(name="x", files={"a": b""}, entry="", command=("no-such-program",))
    result = play(MatchSpec(environment="connect_four", agents=(missing, code(RANDOM)), clock=CLOCK), rack=rack)
    assert result.seats[0].status is SeatStatus.LOAD
    assert "could not be started" in result.seats[0].log


@pytest.mark.parametrize(
    "words",
    [
        "b'a'",
        "b'a' + bytes(7)",
        "b'a' + bytes(9)",
        "b'a' + b'\\xff' * 8",
        "b'r'",
        "b'b' + bytes(8)",
        "b'\\x00'",
        "b'x{}'",
        "b'x[]'",
        "b'x' + b'[' * 5000",
        'b\'x{"fault": "ok", "text": ""}\'',
        "b'M' * 60000",
        "b''",
    ],
)
def test_forged_packets_end_in_a_status(rack: Rack, words: str) -> None:
    """In the agent's process the socket to the host is there to be found."""
    source = f"import os\ndef act(o):\n    os.write(5, {words})\n    os._exit(0)\n"
    result = connect_four(rack, source)
    assert result.seats[0].status in (SeatStatus.PROTOCOL, SeatStatus.ILLEGAL, SeatStatus.CRASH), result.seats[0]
    assert result.winner == 1


def test_endless_pieces_of_an_answer_end_in_a_status(rack: Rack) -> None:
    source = "import os\ndef act(o):\n    while True: os.write(5, b'M' * 50000)\n"
    assert connect_four(rack, source).seats[0].status is SeatStatus.PROTOCOL


def test_extra_answer_is_not_taken_for_the_next_move(rack: Rack) -> None:
    """It may only hurt itself: the second answer is its own, for its own next move."""
    source = "import os, struct\ndef act(o):\n    os.write(5, b'a' + struct.pack('<q', 0))\n    return 1\n"
    result = connect_four(rack, source)
    assert result.status is MatchStatus.FINISHED
    assert result.seats[1].status is SeatStatus.OK


def test_agents_load_from_the_examples(rack: Rack) -> None:
    assert agents.load(RANDOM.encode(), name="bytes").files["agent.py"] == RANDOM.encode()


def test_boxes_have_the_packages_that_the_operator_names(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import sys\nprint('msgspec' in sys.modules)\nimport msgspec\n" + FIRST
    for named, status in (("", SeatStatus.LOAD), ("msgspec", SeatStatus.OK)):
        monkeypatch.setenv("HARENA_AGENT_PACKAGES", named)
        with Rack() as rack:
            seat = connect_four(rack, source).seats[0]
        assert seat.status is status, seat
        assert seat.log.startswith("True" if named else "False"), "what is named is warm"
