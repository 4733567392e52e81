"""Replays: small, the same for the same match, re-run to the letter, and no file from a stranger hurts."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import zstandard

from harena.match import registry, spaces
from harena.match.game import BaseGame, Game, IllegalAction, Outcome
from harena.match.replay import format as fmt
from harena.match.replay import replay
from harena.match.replay.replay import Replay, ReplayError, ReplayRecorder

BUILT_IN = ["connect_four-v1", "leduc-v1", "pong-v1", "rps-v1", "tictactoe-v1", "tron-v1"]


def recorded(
    environment: str = "connect_four-v1",
    *,
    seed: int = 1,
    config: dict[str, Any] | None = None,
    agents: Sequence[str] | None = None,
    stop: int | None = None,
    cpu_us: Callable[[random.Random], int] = lambda rng: int(rng.lognormvariate(3, 0.3)),
    clock_seed: int = 0,
    **result: Any,
) -> bytes:
    """A game of random legal moves."""
    game = registry.make(environment, config or {})
    rng, clock = random.Random(seed), random.Random(clock_seed)
    names = agents or [f"agent{seat}" for seat in range(game.seats)]
    game.reset(seed)
    recorder = ReplayRecorder(
        game, environment=game.id, seed=seed, config=config or {}, match_id=f"m{clock_seed}", agents=names
    )
    for _ in range(stop if stop is not None else game.max_steps):
        if not game.to_move():
            break
        actions = legal_step(game, rng)
        encoded = {seat: game.action_space(seat).encode(action) for seat, action in actions.items()}
        recorder.step(encoded, {seat: cpu_us(clock) for seat in actions})
    over = not game.to_move()
    outcome = game.outcome() if over else game.forfeit(result.get("forfeited", [0]))
    fields: dict[str, Any] = {
        "winner": outcome.winner,
        "scores": outcome.scores,
        "status": "finished",
        "reason": outcome.reason,
        "seats": [("ok", "")] * game.seats,
        "started_at": 1000.0 + clock_seed,
        "ended_at": 1003.5 + clock_seed,
    }
    return recorder.finish(**{**fields, **result})


def legal_step(game: Game, rng: random.Random) -> dict[int, Any]:
    while True:
        actions = {seat: game.action_space(seat).sample(rng) for seat in game.to_move()}
        try:
            game.step(actions)
        except IllegalAction:
            continue
        return actions


def changed(data: bytes, **fields: Any) -> Replay:
    """The replay with other fields: what a forger would write."""
    return Replay(dataclasses.replace(fmt.decode(data), **fields))


def with_action(data: bytes, seat: int, number: int, action: int) -> Replay:
    record = fmt.decode(data)
    column = bytearray(record.actions[seat].data)
    column[number * 8 : number * 8 + 8] = struct.pack("<q", action)
    actions = list(record.actions)
    actions[seat] = fmt.Column(bytes(column), 8)
    return Replay(dataclasses.replace(record, actions=tuple(actions)))


class Essay(BaseGame):
    """One seat writes texts and points at things: actions of uneven length."""

    id = "essay-v1"
    seats = 1
    max_steps = 5

    def __init__(self) -> None:
        self.words: list[Any] = []

    def observation_space(self, seat: int) -> spaces.Space:
        return spaces.Discrete(6)

    def action_space(self, seat: int) -> spaces.Space:
        return spaces.Dict({"text": spaces.Text(80), "point": spaces.Box((3,), "float32", -1, 1)})

    def reset(self, seed: int) -> None:
        self.words = []

    def to_move(self) -> Sequence[int]:
        return (0,) if len(self.words) < 5 else ()

    def observe(self, seat: int) -> int:
        return len(self.words)

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, float]:
        self.words.append([actions[0]["text"], [float(item) for item in actions[0]["point"]]])
        return {0: float(len(actions[0]["text"]))}

    def outcome(self) -> Outcome:
        return Outcome((float(sum(len(text) for text, _ in self.words)),), None, "written")

    def view(self) -> dict[str, Any]:
        return {"words": self.words}


@pytest.fixture
def essay(monkeypatch: pytest.MonkeyPatch) -> str:
    real = registry.make
    monkeypatch.setattr(registry, "make", lambda name, config=None: Essay() if name == Essay.id else real(name, config))
    return Essay.id


# ---- what is kept ----


@pytest.mark.parametrize("environment", BUILT_IN)
def test_every_built_in_game_comes_back_from_bytes_and_from_json(environment: str):
    loaded = Replay.load(recorded(environment))
    assert loaded.verify().ok
    again = Replay.load(json.dumps(loaded.to_json()).encode())
    assert again.game_part() == loaded.game_part()
    assert again.verify().ok
    assert (again.agents, again.winner, again.scores, again.reason) == (
        loaded.agents,
        loaded.winner,
        loaded.scores,
        loaded.reason,
    )
    assert Replay.load(loaded.to_bytes()).to_json() == loaded.to_json()


def test_a_thousand_random_steps_of_two_seats_take_less_than_a_kilobyte():
    assert len(recorded("rps-v1", config={"rounds": 1000})) <= 1000


def test_a_long_game_of_pong_takes_less_than_a_kilobyte():
    sizes = [len(recorded("pong-v1", seed=seed)) for seed in range(3)]
    assert max(sizes) <= 1000


def test_the_same_match_at_another_time_has_the_same_game_part():
    one, two = (Replay.load(recorded(clock_seed=clock_seed)) for clock_seed in (1, 2))
    assert one.to_bytes() != two.to_bytes()
    assert one.game_part() == two.game_part()


def test_the_order_in_which_seats_answered_does_not_show():
    game = registry.make("rps-v1", {"rounds": 1})
    parts: list[bytes] = []
    for order in ((0, 1), (1, 0)):
        game.reset(0)
        recorder = ReplayRecorder(
            game, environment="rps-v1", seed=0, config={"rounds": 1}, match_id="", agents=["a", "b"]
        )
        game.step({0: 0, 1: 1})
        recorder.step({seat: game.action_space(seat).encode(seat) for seat in order}, {0: 1, 1: 2})
        data = recorder.finish(
            winner=1, scores=(0, 1), status="finished", reason="", seats=[("ok", "")] * 2, started_at=0, ended_at=1
        )
        parts.append(Replay.load(data).game_part())
    assert parts[0] == parts[1]


def test_header_fields_are_there_to_read():
    loaded = Replay.load(recorded("connect_four-v1", seed=2**64 - 1, agents=["me", "you"]))
    assert loaded.environment == "connect_four-v1"
    assert loaded.seed == 2**64 - 1
    assert loaded.agents == ("me", "you")
    assert loaded.status == "finished"
    assert loaded.seats == (("ok", ""), ("ok", ""))
    assert (loaded.started_at, loaded.ended_at) == (1000.0, 1003.5)
    assert loaded.versions["environment"] == "v1"


def test_what_an_agent_printed_does_not_break_its_replay():
    odd = "\udc80" + "x" * 10_000_000
    data = recorded(
        stop=2,
        agents=["\udcff", "b"],
        forfeited=[0],
        winner=1,
        scores=(-1, 1),
        reason=odd,
        seats=[("crash", odd), ("ok", "")],
    )
    loaded = Replay.load(data)
    assert loaded.verify().ok
    assert loaded.agents == ("?", "b")
    assert len(loaded.reason) <= 2000


def test_times_keep_their_sum_and_slow_moves_their_size():
    given: list[int] = []

    def cpu_us(rng: random.Random) -> int:
        given.append(rng.choice([3, 20, 45, 300, 2_000, 2_100, 47_000, 1_500_000]))
        return given[-1]

    loaded = Replay.load(recorded("rps-v1", cpu_us=cpu_us))
    kept = [us for frame in loaded.frames() for us in frame.cpu_us.values()]
    assert sum(kept) == pytest.approx(sum(given), rel=1e-4)
    assert all(us == pytest.approx(true, rel=0.06) for us, true in zip(kept, given, strict=True) if true >= 1024)


def test_actions_of_uneven_length_are_kept(essay: str):
    loaded = Replay.load(recorded(essay))
    assert loaded.verify().ok
    assert Replay.load(json.dumps(loaded.to_json()).encode()).game_part() == loaded.game_part()


def test_frames_start_before_the_first_move_and_end_with_the_last():
    frames = list(Replay.load(recorded("tictactoe-v1")).frames())
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert frames[0].actions == {}
    assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert frames[1].view["last"] == frames[1].actions[0]


def test_json_has_the_shape_other_tools_read():
    document = Replay.load(recorded("pong-v1", agents=["same", "same"])).to_json()
    meta, frames = document["metadata"], document["frames"]
    assert set(meta) >= {
        "match_id",
        "environment",
        "agents",
        "start_time",
        "end_time",
        "total_steps",
        "winner",
        "status",
    }
    assert [agent["agent_id"] for agent in meta["agents"]] == ["same", "same (2)"]
    assert [agent["seat"] for agent in meta["agents"]] == [0, 1]
    assert len(frames) == meta["total_steps"]
    assert set(frames[0]) == {"frame_number", "timestamp", "observations", "actions", "rewards", "done", "info"}
    assert [frame["frame_number"] for frame in frames] == list(range(len(frames)))
    assert frames[-1]["done"]
    assert set(frames[0]["observations"]) == {"same", "same (2)"}
    assert document["seed"] == 1
    assert document["environment_version"] == "v1"
    assert json.loads(json.dumps(document)) == msgspec.json.decode(msgspec.json.encode(document))


def test_a_json_replay_with_only_the_contract_and_a_seed_can_be_verified():
    full = Replay.load(recorded("pong-v1")).to_json()
    frames = [
        {key: frame[key] for key in ("frame_number", "observations", "actions", "rewards", "done")}
        for frame in full["frames"]
    ]
    names = [agent["agent_id"] for agent in full["metadata"]["agents"]]
    meta = {
        "environment": "pong",
        "agents": names,
        "winner": full["metadata"]["winner"],
        "scores": full["metadata"]["scores"],
    }
    bare = Replay.load(json.dumps({"version": "1.0", "metadata": meta, "seed": 1, "frames": frames}).encode())
    assert bare.verify().ok
    frames[3]["observations"][names[0]][0] += 0.5
    broken = Replay.load(
        json.dumps({"version": "1.0", "metadata": meta, "seed": 1, "frames": frames}).encode()
    ).verify()
    assert (broken.ok, broken.frame) == (False, 4)
    assert "observation" in broken.recorded


# ---- verify ----


def test_a_forfeit_is_scored_by_the_game():
    data = recorded(stop=4, forfeited=[1], winner=0, scores=(1.0, -1.0), seats=[("ok", ""), ("crash", "ValueError: x")])
    assert Replay.load(data).verify().ok
    assert Replay.load(data).seats[1] == ("crash", "ValueError: x")


def test_a_forfeit_without_a_reason_is_named():
    data = recorded(stop=4, forfeited=[1], winner=0, scores=(1.0, -1.0))
    assert "forfeit of seat 1" in Replay.load(data).verify().recorded


def test_a_match_that_was_cancelled_has_no_winner():
    fields: dict[str, Any] = {"scores": (0.0, 0.0), "status": "cancelled"}
    assert Replay.load(recorded(stop=4, winner=None, **fields)).verify().ok
    assert not Replay.load(recorded(stop=4, winner=1, **fields)).verify().ok


def test_a_forged_winner_is_named():
    data = recorded()
    forged = 1 - (Replay.load(data).winner or 0)
    found = changed(data, winner=forged).verify()
    assert not found.ok
    assert found.recorded == f"seat {forged} as the winner"
    assert found.frame == Replay.load(data).steps


def test_forged_scores_are_named():
    found = changed(recorded("pong-v1"), scores=(11.0, 0.0)).verify()
    assert not found.ok
    assert "scores [11.0, 0.0]" in str(found)


def test_a_changed_move_is_found_at_the_next_check():
    data = recorded("pong-v1", seed=1)
    frame = next(frame for frame in Replay.load(data).frames() if frame.number == 98)
    assert 0.2 < frame.view["paddles"][0]["y"] < 0.8  # so that the other move ends elsewhere
    found = with_action(data, 0, 97, (frame.actions[0] + 1) % 3).verify()
    assert (found.ok, found.frame) == (False, 100)
    assert "hash" in found.recorded


def test_an_illegal_move_is_named_with_its_frame():
    data = recorded("tictactoe-v1")
    second = next(frame for frame in Replay.load(data).frames() if frame.number == 2)
    forged = with_action(data, 0, 1, second.actions[1])
    found = forged.verify()
    assert (found.ok, found.frame) == (False, 3)
    assert "is taken" in found.replayed
    with pytest.raises(ReplayError, match="frame 3"):
        list(forged.frames())


def test_an_action_outside_the_space_is_named():
    found = with_action(recorded(), 0, 0, 7).verify()
    assert (found.ok, found.frame) == (False, 1)
    assert "out of range" in found.replayed


def test_another_seed_diverges():
    assert not changed(recorded("pong-v1"), seed=2).verify().ok


def test_a_game_cut_short_goes_on():
    found = Replay.load(recorded(stop=4, winner=0, scores=(1.0, -1.0))).verify()
    assert not found.ok
    assert "goes on: seat 0 to move" in found.replayed


def test_the_wrong_number_of_agents_is_named():
    assert "2 seats" in changed(recorded("tron-v1", config={"seats": 4}), config={"seats": 2}).verify().replayed


def test_a_box_action_out_of_its_bounds_is_refused(essay: str):
    data = recorded(essay)
    record = fmt.decode(data)
    first = next(iter(record.actions[0]))
    bad = first[:-4] + struct.pack("<f", 7.0)
    actions = (fmt.Column.of([bad, *list(record.actions[0])[1:]]),)
    found = Replay(dataclasses.replace(record, actions=actions)).verify()
    assert (found.ok, found.frame) == (False, 1)


# ---- files from strangers ----


def crafted(game: Any = None, run: Any = None) -> bytes:
    """A file around sections that were written by hand."""
    sections = [zstandard.compress(section) for section in (game, run)]
    return fmt.MAGIC + bytes([fmt.VERSION]) + struct.pack("<I", len(sections[0])) + b"".join(sections)


def section(head: Any, columns: bytes = b"") -> bytes:
    data = msgspec.msgpack.encode(head)
    return struct.pack("<I", len(data)) + data + columns


def game_head(**fields: Any) -> list[Any]:
    head: dict[str, Any] = {
        "environment": "rps-v1",
        "seed": 0,
        "config": {},
        "agents": ["a", "b"],
        "steps": 0,
        "winner": None,
        "scores": [0.0, 0.0],
        "status": "finished",
        "seats": ["ok", "ok"],
        "forfeited": [],
        "final": b"",
        "checks": b"",
        "movers": [],
        "order": None,
        "columns": [[0, 8, []], [0, 8, []]],
    }
    return list({**head, **fields}.values())


RUN = section(["", "", "", ["", ""], 0.0, 0.0, [[], []], [[0, 1, []], [0, 1, []]]])


def test_a_file_made_by_hand_is_read():
    assert Replay.load(crafted(section(game_head()), RUN)).steps == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": 10**9}, "steps"),
        ({"steps": -1}, "steps"),
        ({"steps": 5}, "who moved"),
        ({"steps": 5, "movers": [[0, 1]]}, "moves 5 times"),
        ({"steps": 5, "movers": [[0, 2]]}, "seats"),
        ({"steps": 5, "movers": [[0, 0]]}, "seats"),
        ({"winner": 2}, "seats"),
        ({"winner": -1}, "seats"),
        ({"forfeited": [9]}, "seats"),
        ({"agents": []}, "agents"),
        ({"agents": ["a"] * 5000}, "agents"),
        ({"scores": [1.0]}, "agents"),
        ({"final": b"x"}, "hashes"),
        ({"checks": b"x" * 400}, "hashes"),
        ({"columns": [[10**12, 8, [0]], [0, 8, []]]}, "limits"),
        ({"columns": [[-1, 8, []], [0, 8, []]]}, "limits"),
        ({"columns": [[1_000_000, 64, [1, 0]], [0, 8, []]]}, "out of order"),
        ({"columns": [[1_000_000, 64, [64]], [0, 8, []]]}, "out of order"),
        ({"columns": [[4, 8, []], [0, 8, []]]}, "ends early"),
        ({"seed": "0"}, "damaged"),
        ({"config": [1]}, "damaged"),
        ({"extra": 1}, "damaged"),
    ],
)
def test_a_header_that_lies_is_refused(fields: dict[str, Any], words: str):
    with pytest.raises(ReplayError, match=words):
        Replay.load(crafted(section(game_head(**fields)), RUN))


def test_columns_left_out_do_not_become_gigabytes():
    planes = [[1_000_000, 64, [0]]] * 2
    head = game_head(columns=planes, steps=1_000_000, movers=[[0, 1]])
    with pytest.raises(ReplayError, match="unpack to more"):
        Replay.load(crafted(section(head, bytes(2_000_000)), RUN))


def test_a_zip_bomb_is_refused_by_what_it_says():
    bomb = zstandard.compress(bytes(fmt.MAX_SECTION + 1))
    assert len(bomb) < 10_000
    with pytest.raises(ReplayError, match="unpacks to"):
        Replay.load(fmt.MAGIC + bytes([1]) + struct.pack("<I", len(bomb)) + bomb + bomb)


def test_a_zip_bomb_that_does_not_say_its_size_is_refused():
    stream = zstandard.ZstdCompressor().compressobj()
    bomb = stream.compress(bytes(1 << 20)) + stream.flush()
    with pytest.raises(ReplayError):
        Replay.load(fmt.MAGIC + bytes([1]) + struct.pack("<I", len(bomb)) + bomb + bomb)


def test_a_huge_header_is_refused():
    huge = struct.pack("<I", fmt.MAX_HEADER + 1) + bytes(fmt.MAX_HEADER + 1)
    with pytest.raises(ReplayError, match="header"):
        Replay.load(crafted(huge, RUN))


def told(loaded: Replay) -> object:
    """What a replay says of its game, without names, words and times."""
    moves = [frame.actions for frame in loaded.frames()]
    return loaded.environment, moves, loaded.winner, loaded.scores, loaded.status


def refused(data: bytes, game: object) -> bool:
    """Whether a damaged file is refused or found false. If neither, it has to tell the same game."""
    try:
        loaded = Replay.load(data)
        found = loaded.verify()
    except ReplayError:
        return True
    assert not found.ok or told(loaded) == game, "damage that changed the game was not found"
    return not found.ok


def test_damaged_files_are_refused_or_tell_the_same_game():
    data = recorded("leduc-v1", config={"hands": 3})
    game = told(Replay.load(data))
    rng = random.Random(5)
    count = 0
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        count += refused(bytes(broken[: rng.choice([len(broken), rng.randrange(len(broken))])]), game)
    assert count > 350, "what is left are damages of names, words and times"


def test_damaged_sections_are_refused_or_tell_the_same_game():
    data = recorded("tictactoe-v1")
    game = told(Replay.load(data))
    size = int.from_bytes(data[5:9], "little")
    section, run = zstandard.decompress(data[9 : 9 + size]), zstandard.decompress(data[9 + size :])
    rng = random.Random(6)
    count = 0
    for _ in range(400):
        broken = bytearray(section)
        broken[rng.randrange(len(broken))] ^= rng.randrange(1, 256)
        count += refused(crafted(bytes(broken), run), game)
    assert count > 300, "what is left are damages of names, and of a seed that this game does not use"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x04.", fmt.MAGIC, fmt.MAGIC + b"\x09" + bytes(40), b"[]"])
def test_what_is_no_replay_is_refused(data: bytes):
    with pytest.raises(ReplayError):
        Replay.load(data)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": None},
        {"seed": "1"},
        {"frames": [{"actions": {"stranger": 0}}]},
        {"frames": [{"actions": {"agent0": 99}}]},
        {"frames": [{"actions": {"agent0": "0"}}]},
        {"frames": [{"actions": {"agent0": True}}]},
        {"frames": {}},
        {"metadata": {"environment": "os:system", "agents": ["a", "b"]}},
        {"metadata": {"environment": "tictactoe-v1", "agents": ["a", "a"]}},
        {"metadata": {"environment": "tictactoe-v1", "agents": ["a"]}},
        {"metadata": {"environment": "tictactoe-v1", "agents": ["a", "b"], "winner": "c"}},
        {"metadata": {"environment": "tictactoe-v1", "agents": ["a", "b"], "scores": [1]}},
        {"metadata": {"environment": "tictactoe-v1", "agents": ["a", "b"], "forfeited": [-1]}},
        {"final_hash": "zz"},
        {"check_hashes": ["00"]},
        {"config": {"nested": 1}},
    ],
)
def test_json_that_lies_is_refused(change: dict[str, Any]):
    document = Replay.load(recorded("tictactoe-v1")).to_json()
    with pytest.raises(ReplayError):
        Replay.load(json.dumps({**document, **change}).encode())


def test_json_nested_without_end_is_refused():
    with pytest.raises(ReplayError):
        Replay.load(b'{"version": "1.0", "config": ' + b'{"a":' * 100_000)


def test_a_replay_does_not_name_code_to_import():
    loaded = changed(recorded(), environment="antigravity:fly")
    with pytest.raises(ReplayError, match="import"):
        loaded.verify()


def test_a_replay_longer_than_its_game_is_not_run():
    data = recorded("rps-v1", config={"rounds": 200})
    assert "at most 100" in changed(data, config={"rounds": 100}).verify().replayed


def test_a_file_that_is_not_there_is_said_so(tmp_path: Any):
    with pytest.raises(ReplayError, match="cannot read"):
        Replay.load(tmp_path / "none.replay")
    path = tmp_path / "one.replay"
    path.write_bytes(recorded())
    assert Replay.load(path).verify().ok
    assert Replay.load(str(path)).verify().ok


def test_too_many_steps_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fmt, "MAX_STEPS", 10)
    with pytest.raises(ReplayError, match="recording off"):
        recorded("rps-v1")


def test_a_view_that_is_no_data_is_the_games_fault(essay: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Essay, "view", lambda self: {"words": object()})
    with pytest.raises(replay.GameError, match="essay-v1"):
        recorded(essay)


BEFORE_SEATS_WERE_TAKEN_OUT = (
    "iUhSUAGCAAAAKLUv/SCdzQMAlAaRAAAAn6d0cm9uLXYxAIGlc2VhdHMElKJhMKJhMaJhMqJhMwLAlMs/8AC/qGZpbmlzaGVklKJva6VjcmFzaJ"
    "EDxBBQ/KACapjC9kVhHBvh3hh/xACRlAABAgPAlJMCCJEAAQMAAQMDAAAFAEHppW48yJglrS5QBii1L/0g25UEANQHzwAAAJisZTJmMDczNTk5"
    "YTJlpTAuMS4w2UFhMzogY3Jhc2g6IFplcm9EaXZpc2lvbkVycm9yOiBkIGJ5IHplcm8gKGFnZW50LnB5LCBsaW5lIDUplKCgoNk2y0HavqB6kX"
    "z0nzXPlJGSAcyYoqSKlJMCAZEAAQEBAQEBAQEHAKAN2AFjKFayDDL76pAUd+4B"
)
"""Tron for four, written when one seat's crash ended the game for all: those replays stay what they are."""


def test_a_replay_from_before_seats_were_taken_out_still_verifies() -> None:
    old = Replay.load(base64.b64decode(BEFORE_SEATS_WERE_TAKEN_OUT))
    assert (old.forfeited, old.withdrawn, old.scores) == ((3,), (), (1.0, 1.0, 1.0, -1.0))
    assert old.verify().ok
    assert old.to_bytes() == base64.b64decode(BEFORE_SEATS_WERE_TAKEN_OUT), "and is written as it was"
