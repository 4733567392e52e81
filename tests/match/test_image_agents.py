"""Agents that are images: what they play, how they fail, and what hostile ones cannot do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harena.cli import main
from harena.errors import SpecError
from harena.match.agent import image
from harena.match.agent.load import AgentError
from harena.match.agent.validate import validate
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus, VoidCause
from harena.match.run import lockstep
from harena.match.run.play import Rack, play
from support.image_agents import SHELL_AGENT, ImageAgents, image_agents

pytestmark = pytest.mark.services

assert image_agents
CODE = "class Agent:\n    def act(self, observation):\n        return 0\n"


def code_agent(source: str = CODE, name: str = "code") -> AgentCode:
    return AgentCode(name=name, files={"agent.py": source.encode()})


def match(
    *agents: AgentCode | str, rack: Rack | None = None, clock: Clock | None = None, **spec: object
) -> MatchResult:
    loaded = [agent if isinstance(agent, AgentCode) else image.load_any(agent) for agent in agents]
    fields: dict[str, Any] = {"environment": "rps", "agents": tuple(loaded), "seed": 5, **spec}
    return play(MatchSpec(clock=clock or Clock(move_s=10), **fields), rack=rack)


def fault(agent: AgentCode | str, **spec: Any) -> tuple[SeatStatus, str]:
    """How the agent fails against one that plays on."""
    result = match(agent, code_agent(), **spec)
    assert result.status is MatchStatus.FINISHED, result
    assert result.seats[1].status is SeatStatus.OK, result
    assert result.winner == 1, result
    return result.seats[0].status, result.seats[0].reason


# ---- what they play ----


@pytest.mark.parametrize("kind", ["shell", "python"])
def test_an_image_plays_against_code(images: ImageAgents, kind: str) -> None:
    agent = images.shell() if kind == "shell" else images.python()
    for seats in ((agent, code_agent()), (code_agent(), agent)):
        result = match(*seats)
        assert result.status is MatchStatus.FINISHED, result
        assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2, result
        assert all(seat.moves >= 3 and seat.cpu_s > 0 for seat in result.seats)


def test_python_of_an_image_gets_what_code_gets(images: ImageAgents) -> None:
    source = (
        "import random, helper\n"
        "from pathlib import Path\n"
        "class Agent:\n"
        "    def __init__(self, player_id, seats, environment, seed, config, action_space):\n"
        "        print(player_id, seats, environment, config, action_space.n, helper.WORD, Path(__file__).name)\n"
        "        print(random.random())\n"
        "    def act(self, observation):\n"
        "        assert sorted(observation) == ['mine', 'round', 'theirs']\n"
        "        return observation['round'] % 3\n"
    )
    agent = images(
        "LABEL harena.agent=/agent/bot.py", {"bot.py": source, "helper.py": "WORD = 'beside'"}, base="python:1"
    )
    plain = AgentCode(name="plain", files={"bot.py": source.encode(), "helper.py": b"WORD = 'beside'"}, entry="bot.py")
    spec: dict[str, Any] = {"config": {"rounds": 4}}
    ours, theirs = match(agent, code_agent(), **spec), match(plain, code_agent(), **spec)
    assert ours.seats[0].log == theirs.seats[0].log, ours
    assert "0 2 rps-v1 {'rounds': 4} 3 beside bot.py" in ours.seats[0].log
    assert ours.fingerprint == theirs.fingerprint


def test_an_image_stays_for_a_series_where_code_does(images: ImageAgents) -> None:
    source = "games = []\nclass Agent:\n    def __init__(self): games.append(1); print(len(games))\n    def act(self, o): return 0\n"
    agent = images.python(source)
    with Rack() as rack:
        kept = [match(agent, code_agent(), rack=rack, keep=True).seats[0].log for _ in range(3)]
        fresh = [match(agent, code_agent(), rack=rack).seats[0].log for _ in range(2)]
    assert [log.split() for log in kept] == [["1"], ["2"], ["3"]]
    assert [log.split() for log in fresh] == [["1"], ["1"]]


def test_a_replay_records_the_digest_and_is_verified(images: ImageAgents) -> None:
    built = images.build('ENTRYPOINT ["/agent/run"]', {"run": SHELL_AGENT})
    result = match(f"image:{built.reference}", code_agent())
    replay = Replay.load(result.replay)
    name = built.reference.rpartition(":")[0]
    assert replay.images == (f"{name}@{built.digest}", "")
    assert replay.verify().ok
    written = replay.to_json()
    assert [agent.get("image") for agent in written["metadata"]["agents"]] == [replay.images[0], None]
    again = Replay.load(json.dumps(written).encode())
    assert again.images == replay.images
    assert again.game_part() == replay.game_part()
    assert Replay.load(match(code_agent(), code_agent()).replay).images == ()


def test_the_command_and_validation_take_images(images: ImageAgents, tmp_path: Path, capsys: Any) -> None:
    agent = images.python()
    other = tmp_path / "other.py"
    other.write_text(CODE)
    assert main(["match", "rps", agent, str(other), "--json"]) == 0
    seats = json.loads(capsys.readouterr().out)["seats"]
    assert [seat["status"] for seat in seats] == ["ok", "ok"]
    assert main(["match", "rps", "image:nothing:9", str(other)]) == 2
    assert "harena image pull nothing:9" in capsys.readouterr().err
    assert validate(agent, "rps").valid
    wrong = validate(images.python("class Agent:\n    def act(self, observation): return 7\n"), "rps")
    assert not wrong.valid
    assert "not allowed in rps-v1" in wrong.errors[0]
    with pytest.raises(SpecError, match="images play one game at a time"):
        lockstep.evaluate(MatchSpec(environment="rps", agents=(image.load_any(agent), code_agent())), [1, 2])


# ---- names ----


@pytest.mark.parametrize(
    "name", ["", "UPPER", "a b", "../x", "x;id", "http://x", "x@sha256:zz", "x\n", "x:", "-x", "x" * 600, "/etc"]
)
def test_a_name_with_odd_characters_is_refused(images: ImageAgents, name: str) -> None:
    with pytest.raises(AgentError, match="is not the name of an image"):
        image.load(name)


@pytest.mark.parametrize("label", ["agent.py", "/agent/agent", "/a/../b.py", "/", "", "/x/.py/\n.py"])
def test_a_label_that_is_no_path_is_refused(images: ImageAgents, label: str) -> None:
    built = images.build(f'LABEL harena.agent="{label}"' if "\n" not in label else "LABEL harena.agent=-c")
    with pytest.raises(AgentError, match=r"harena\.agent"):
        image.load(built.reference)


def test_only_allowed_images_are_pulled(images: ImageAgents) -> None:
    policy = image.PullPolicy(allow=("localhost:1/team/*", "localhost:1/one"), setting="images.pull")
    for name in ("localhost:1/team", "localhost:1/teams/x", "localhost:1/one/x", "localhost:2/one", "team/x"):
        with pytest.raises(image.ImageMissing, match=r"harena image pull .*, or add .* to images\.pull"):
            image.load(name, pulls=policy)
    for name in ("localhost:1/team/x", "localhost:1/one:3"):
        with pytest.raises(image.PullFailed):
            image.load(name, pulls=policy)
    for pattern in (
        "python",
        "docker.io/library/python:3",
        "*",
        "registry.example/*/x",
        "GHCR.io/x",
        "",
        "https://x/y",
    ):
        with pytest.raises(SpecError):
            image.checked_pattern(pattern)
    assert image.checked_pattern("localhost:5000/*") == "localhost:5000/*"


def test_an_image_that_changes_after_it_was_loaded_is_not_played(images: ImageAgents) -> None:
    built = images.build('ENTRYPOINT ["/agent/run"]', {"run": SHELL_AGENT})
    code = image.load(built.reference)
    images.store.remove(built.reference)
    result = match(code, code_agent())
    assert (result.status, result.cause) == (MatchStatus.VOID, VoidCause.NO_BOX)
    assert "harena image pull" in result.error


# ---- hostile images ----

READY = """read init; echo '{"ready": true}'; read reset; read act\n"""


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("sleep 1000", "timeout", "no line arrived within"),
        (READY + "sleep 1000", "timeout", "no line arrived within"),
        (READY + "while :; do :; done", "timeout", "no line arrived within|of processor time"),
        ("while :; do echo x; done", "protocol", "not JSON"),
        ("cat /dev/zero", "protocol", "a line of more than"),
        ("while :; do echo flood of words on the log >&2; done", "output", "it printed more than"),
        ("exit 3", "crash", "exit code 3"),
        (READY + "exit 0", "crash", "exit code 0"),
        ("exec <&- >&-; sleep 1000", "crash", "closed its connection"),
        ("kill -9 $$", "crash", "signal 9"),
        ("""echo '{"ready": 1}'""", "protocol", "the first line must be"),
        ("echo '[[['", "protocol", "not JSON"),
        ("""echo '{"fault": "ok", "text": ""}'""", "protocol", "without saying why"),
        ("""echo '{"fault": "load", "text": "no weights"}'""", "load", "no weights"),
        (READY + """echo '{"action": 0, "score": 100}'""", "protocol", "an answer must be"),
        (READY + """echo '{"action": true}'""", "illegal", "not a whole number"),
        (READY + """echo '{"action": 3}'""", "illegal", "out of range"),
        (READY + """echo '{"action": 1e999}'""", "illegal", "not a whole number"),
    ],
)
def test_a_hostile_entrypoint_loses(images: ImageAgents, script: str, status: str, reason: str) -> None:
    agent = images.shell(f"#!/bin/sh\n{script}\n")
    start = 3.0 if script == "sleep 1000" else 30.0
    found = fault(agent, clock=Clock(start_s=start, move_s=1.0 if status == "timeout" else 10.0), output_bytes=100_000)
    assert found[0].value == status, found
    assert re.search(reason, found[1]), found


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ('USER nobody-here\nENTRYPOINT ["/agent/run"]', "load"),
        ('USER root:no-group\nENTRYPOINT ["/agent/run"]', "load"),
        ('ENTRYPOINT ["/agent/missing"]', "load"),
        ('ENTRYPOINT ["run"]', "load"),
        ('ENTRYPOINT ["/agent"]', "load"),
        ('ENV PATH=/nowhere LD_PRELOAD=/x HOME=/gone\nUSER app\nWORKDIR /agent\nENTRYPOINT ["./run"]', "ok"),
        ('ENTRYPOINT ["/bin/sh"]\nCMD ["/agent/run"]', "ok"),
        ('CMD ["/agent/run"]', "ok"),
        ("CMD /agent/run", "ok"),
        ('HEALTHCHECK CMD exit 1\nSTOPSIGNAL SIGKILL\nCMD ["/agent/run"]', "ok"),
        ('WORKDIR /gone\nRUN ["rm", "-r", "/gone"]\nENTRYPOINT ["/agent/run"]', "load"),
    ],
)
def test_what_the_config_says_harms_the_image_alone(images: ImageAgents, lines: str, status: str) -> None:
    result = match(images(lines, {"run": SHELL_AGENT}), code_agent())
    assert result.status is MatchStatus.FINISHED, result
    assert [seat.status.value for seat in result.seats] == [status, "ok"], result


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("exit 0", "crash", "exit code 0"),
        ("echo not json", "protocol", "not JSON"),
        ("sleep 1000", "timeout", "no line arrived within"),
        (SHELL_AGENT.partition("\n")[2], "ok", ""),
    ],
)
def test_a_script_that_is_called_python_is_an_agent_like_any_other(
    images: ImageAgents, script: str, status: str, reason: str
) -> None:
    agent = images(
        "LABEL harena.agent=/agent/agent.py\nCOPY python3 /bin/python3", {"python3": f"#!/bin/sh\n{script}\n"}
    )
    result = match(agent, code_agent(), clock=Clock(start_s=3 if status == "timeout" else 30, move_s=10))
    assert [seat.status.value for seat in result.seats] == [status, "ok"], result
    assert reason in result.seats[0].reason


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        ("import nothing_of_that_name\n", "load", "ModuleNotFoundError"),
        ("def act(o: return 0\n", "load", "SyntaxError"),
        ("x = 1\n", "load", "defines no"),
        ("def act(observation): return 1 / 0\n", "crash", "ZeroDivisionError"),
        ("def act(observation): return 5\n", "illegal", "out of range"),
        ("def act(observation): raise SystemExit(3)\n", "crash", "sys.exit(3)"),
        ("def act(observation): import os; os.write(1, b'{}\\n'); return 0\n", "ok", ""),
        ("def act(observation): return len(bytearray(1 << 30))\n", "memory", ""),
    ],
)
def test_python_of_an_image_fails_as_code_does(images: ImageAgents, source: str, status: str, reason: str) -> None:
    agent = images.python(source)
    for seated in (agent, code_agent(source)):
        seat = match(seated, code_agent(), config={"rounds": 2}, memory_mb=128).seats[0]
        assert seat.status.value == status, seat
        assert reason in seat.reason, seat


def test_what_an_image_starts_is_charged(images: ImageAgents) -> None:
    work = SHELL_AGENT.replace('echo \'{"action"', 'dd if=/dev/zero of=/dev/null bs=1M count=3000; echo \'{"action"')
    result = match(images.shell(work), code_agent(), config={"rounds": 2}, clock=Clock(move_s=20))
    assert result.seats[0].status is SeatStatus.OK, result
    assert result.seats[0].cpu_s > 10 * result.seats[1].cpu_s, result


def test_two_images_see_nothing_of_each_other(images: ImageAgents) -> None:
    look = SHELL_AGENT.replace("move=0", "id=NAME; touch /tmp/NAME /NAME; ls / /tmp /agent >&2; ps >&2; move=0")
    first, second = (
        images('ENTRYPOINT ["/agent/NAME"]'.replace("NAME", name), {name: look.replace("NAME", name)})
        for name in ("mine-alone", "other-alone")
    )
    result = match(first, second)
    logs = [seat.log for seat in result.seats]
    assert all(seat.status is SeatStatus.OK for seat in result.seats), result
    assert "mine-alone" in logs[0]
    assert "other-alone" not in logs[0]
    assert "other-alone" in logs[1]
    assert "mine-alone" not in logs[1]
